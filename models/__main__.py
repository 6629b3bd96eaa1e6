"""`python -m models`: hold the engine against the pure models until the time is up, and give a verdict."""

from models.commands import command

if __name__ == "__main__":
    command("python -m models", {})(prog_name="python -m models")
