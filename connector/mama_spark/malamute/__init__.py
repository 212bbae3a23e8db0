"""The Malamute protocol (MLP): its codec, a client, a broker, and the bridge that publishes and reads through them."""
