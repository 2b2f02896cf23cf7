"""The one exception of the lab. Its text says what is wrong and what to do about it."""


class LabError(Exception):
    """The lab cannot do what was asked: the message is for the person who asked."""
