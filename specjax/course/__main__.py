"""``python -m specjax.course start 03 | check 03 [FILE]``."""

import argparse
import sys
from pathlib import Path

from specjax.course.grade import check, grade_file, start


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m specjax.course", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("start", "write the exercises of a lesson to a file"),
        ("check", "grade a file, with hints"),
        ("grade", "the same in this process, without a limit of time"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("number", type=int, help="of the notebook: 2, 3, 4, 5, 8 or 10")
        if name == "start":
            command.add_argument("--folder", type=Path, default=Path())
        else:
            command.add_argument("file", type=Path, nargs="?", help="else exercises_NN.py, here")
    return parser


def main(words: list[str] | None = None) -> int:
    """Run the command; return the exit code: 0 if all is right, 1 if not, 2 for a wrong command."""
    given = new_parser().parse_args(words)
    file = getattr(given, "file", None) or Path(f"exercises_{given.number:02}.py")
    try:
        if given.command == "start":
            print(f"wrote {start(given.number, given.folder)}")
        elif given.command == "check":
            print(check(given.number, file))
        else:
            grades = list(grade_file(given.number, file))
            for one in grades:
                print(f"{'right' if one.right else 'wrong'}  {one.name}: {one.says}")
            return 0 if all(one.right for one in grades) else 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
