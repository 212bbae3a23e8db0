"""MAMA messages and their wire form (OMNM). Pure."""
