"""The subcommands of ``mama``, one module each.

``add_arguments(parser)`` declares the arguments of a subcommand; ``run(args)`` executes it and returns the exit code.
A module is imported only for its own subcommand (:mod:`mama_spark.cli.main`), and may import whatever that needs.
"""
