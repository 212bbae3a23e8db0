"""Window of flights, retries and the send loop: publishers, record logs and discovery all send with them."""
