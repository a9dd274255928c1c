"""What runs inside the interpreters of the systems that are compared.

Nothing here imports seedbed, so that each system's own interpreter, with its own pins, can run it:
worlds and their records need NumPy alone, and each `drive_*` the one system that it drives.
"""
