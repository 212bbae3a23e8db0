"""The network of OpenMAMA programs: its wire, a peer, the bridge, a source, a recorder."""
