"""Ids of messages: made, remembered, counted when doubled."""
