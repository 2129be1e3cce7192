"""``python -m simgpu``: the command line."""

from simgpu.cli import main

if __name__ == "__main__":
    main()
