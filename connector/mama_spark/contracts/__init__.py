"""What everybody may import: messages, topics, errors, bridges, logs."""
