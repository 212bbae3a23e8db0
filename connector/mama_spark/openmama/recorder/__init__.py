"""OpenMAMA recorder: subscribes to topics and symbols, and writes their messages into a record log."""
