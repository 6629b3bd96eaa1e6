"""Subjects: the systems that a swarm drives and the rules judge, each behind the same few facts."""

from stress.subjects.picker import PICKER
from stress.subjects.store import STORE
from stress.subjects.subject import Subject

__all__ = ["PICKER", "STORE", "Subject"]
