"""Hooks around a framework's functions that can neither fail nor change what they surround."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hindmost.complaint import complain

if TYPE_CHECKING:
    from collections.abc import Callable


def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, made unable to raise: its first fault is one line on stderr, and it does nothing ever after."""
    broken = False

    def call(*arguments: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            return hook(*arguments)
        except Exception as error:
            broken = True
            _say(hook, error)
        return None

    return call


def _say(hook: Callable[..., Any], error: Exception) -> None:
    complain(f"{getattr(hook, '__qualname__', hook)} failed ({error!r})")


class Inside:
    """What a hook calls: the function that it surrounds, or who surrounds that in turn."""

    __slots__ = ("original",)

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original


def around(
    owner: Any,
    name: str,
    before: Callable[..., Any],
    after: Callable[..., Any],
    failed: Callable[..., Any] | None = None,
    named: bool = False,
) -> Inside:
    """Replace ``owner.name`` by a function that calls ``before(*args)`` first and ``after(token, result, *args)`` last.

    ``token`` is what ``before`` returned; where that is ``None``, nothing else is called. ``failed(token, *args)`` is
    called when the original raised, which goes on as it was. ``named``: ``before`` gets the named arguments, too.
    Results and arguments pass untouched. What is returned can be surrounded, too, by its name ``original``: inside.
    """
    original = getattr(owner, name)
    inside = Inside(original)
    fail = guarded(failed or (lambda *_: None))
    broken = False

    # The bodies of ``guarded`` stand in here: each call that a step does not make is a microsecond of a cold cache.
    @functools.wraps(original)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        nonlocal broken
        token = None
        try:
            token = None if broken else before(*args, **kwargs) if named else before(*args)
        except Exception as error:
            broken = True
            _say(before, error)
        if token is None:
            return inside.original(*args, **kwargs)
        try:
            result = inside.original(*args, **kwargs)
        except BaseException:
            fail(token, *args)
            raise
        try:
            after(token, result, *args)
        except Exception as error:
            broken = True
            _say(after, error)
        return result

    replace(owner, name, original, surrounded)
    return inside


def replace(owner: Any, name: str, original: Any, by: Any) -> None:
    """Put a hook in place of a function, until hooks are taken out."""
    by._torchdynamo_disable = True  # torch.compile must neither trace the hooks nor wonder at them
    setattr(owner, name, by)

    def restore() -> None:
        if getattr(owner, name) is by:  # a later patch keeps calling us, and we call the original
            setattr(owner, name, original)

    undo.append(restore)


#: What takes the hooks out again, in the order in which they were put in.
undo: list[Callable[[], None]] = []


def remove_all() -> None:
    """Take every hook out, the last first: ``hindmost attach`` leaves the process as it found it."""
    while undo:
        guarded(undo.pop())()
