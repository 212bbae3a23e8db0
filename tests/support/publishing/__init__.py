"""What tests of publishers share."""
