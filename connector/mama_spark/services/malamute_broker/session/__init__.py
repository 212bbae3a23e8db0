"""The broker's side of MLP: sessions of clients, deliveries, mailboxes and log queries. Pure."""
