"""The format ``mamasub``: messages of topics as rows."""
