"""What a recorder of OpenMAMA messages writes into a record log: records, and the gaps that it finds. Pure."""
