"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # how long an example takes says nothing where others work too
settings.load_profile("any machine")
