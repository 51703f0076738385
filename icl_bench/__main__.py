"""``python -m icl_bench``."""

from icl_bench.cli import main

if __name__ == "__main__":
    main()
