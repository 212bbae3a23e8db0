"""The world of Malamute: a broker and its clients, with the wires between them."""
