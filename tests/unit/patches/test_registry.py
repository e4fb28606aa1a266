"""The life cycle of patches, on a package made for the test.

A failure means that a patch could be lost, applied twice, applied to a version it was not written
for, or not be taken back.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from auto_LiRPA_patches.errors import PatchError
from auto_LiRPA_patches.registry import PATCHES, Patch, Registry


def shout(text: str) -> str:
    return text.upper()


def polite(self: object, text: str) -> str:
    return f"please {text}"


PACKAGE = "patched_package"


@pytest.fixture
def package() -> Iterator[ModuleType]:
    """A package with a function, a star-imported copy, a copy in a class body, and a method."""
    root, library, user = (ModuleType(f"{PACKAGE}{end}") for end in ("", ".library", ".user"))
    ours = ModuleType("our_replacements")

    def speak(text: str) -> str:
        return text

    class Speaker:
        copied = staticmethod(speak).__func__

        def ask(self, text: str) -> str:
            return text

        @staticmethod
        def quiet(text: str) -> str:
            return text

    Speaker.__module__ = library.__name__
    root.__version__ = "0.3"  # type: ignore[attr-defined]
    library.speak, library.Speaker = speak, Speaker  # type: ignore[attr-defined]
    user.renamed = speak  # type: ignore[attr-defined]
    ours.shout, ours.polite = shout, polite  # type: ignore[attr-defined]
    modules = {module.__name__: module for module in (root, library, user, ours)}
    sys.modules.update(modules)
    yield library
    for name in modules:
        del sys.modules[name]


def record(**changes: object) -> Patch:
    fields: dict[str, object] = {
        "id": "loud",
        "target": f"{PACKAGE}.library:speak",
        "replacement": "our_replacements:shout",
        "why": "it whispers",
        "upstream": "==0.3",
        "parameters": ("text",),
        "instead_of": "nothing else",
        "remove_when": "it speaks up",
        "exact_at_world_size_1": True,
    }
    return Patch(**(fields | changes))  # type: ignore[arg-type]


METHOD = record(
    id="polite",
    target=f"{PACKAGE}.library:Speaker.ask",
    replacement="our_replacements:polite",
    parameters=("self", "text"),
)


def registry(*patches: Patch) -> Registry:
    return Registry(patches, package=PACKAGE)


def test_every_copy_of_a_function_is_replaced_and_put_back_by_identity(package) -> None:
    original = package.speak
    patches = registry(record())
    patches.apply()
    assert package.speak is shout
    assert sys.modules[f"{PACKAGE}.user"].renamed is shout  # type: ignore[attr-defined]
    assert vars(package.Speaker)["copied"] is shout
    assert patches.applied() == ("loud",)
    patches.revert()
    assert package.speak is original
    assert sys.modules[f"{PACKAGE}.user"].renamed is original  # type: ignore[attr-defined]
    assert vars(package.Speaker)["copied"] is original
    assert patches.applied() == ()


def test_a_method_is_replaced_on_its_class(package) -> None:
    original = vars(package.Speaker)["ask"]
    patches = registry(METHOD)
    patches.apply()
    assert package.Speaker().ask("sit") == "please sit"
    patches.revert()
    assert vars(package.Speaker)["ask"] is original


def test_applying_twice_is_applying_once(package) -> None:
    original = package.speak
    patches = registry(record())
    patches.apply()
    patches.apply()
    patches.revert()
    assert package.speak is original


def test_a_copy_made_while_the_patch_was_in_force_is_put_back_too(package) -> None:
    original = package.speak
    patches = registry(record())
    patches.apply()
    sys.modules[f"{PACKAGE}.user"].late = package.speak  # type: ignore[attr-defined]
    patches.revert()
    assert sys.modules[f"{PACKAGE}.user"].late is original  # type: ignore[attr-defined]


def test_revert_refuses_to_overwrite_what_others_put_there(package) -> None:
    patches = registry(record(), METHOD)
    patches.apply()
    package.speak = len
    with pytest.raises(PatchError, match="cannot revert.*library:speak now holds.*len"):
        patches.revert()
    assert package.Speaker().ask("sit") == "please sit", "nothing may change on failure"


def test_patched_restores_what_was_before(package) -> None:
    original = package.speak
    patches = registry(record())
    with pytest.raises(RuntimeError), patches.patched():
        assert package.speak is shout
        with patches.patched():
            pass
        assert package.speak is shout, "the inner block must not take the outer one's patch away"
        raise RuntimeError
    assert package.speak is original
    patches.apply()
    with patches.patched():
        pass
    assert package.speak is shout


def test_every_problem_is_listed_and_nothing_changed(package) -> None:
    original = package.speak
    patches = registry(
        record(id="fine"),
        record(id="newer", upstream=">=0.6"),
        record(id="gone", target=f"{PACKAGE}.library:vanished"),
        record(id="no-module", target=f"{PACKAGE}.absent:speak"),
        record(id="no-class", target=f"{PACKAGE}.library:Absent.speak"),
        record(id="changed", parameters=("text", "volume")),
    )
    with pytest.raises(PatchError) as caught:
        patches.apply()
    message = str(caught.value)
    assert "nothing was changed" in message
    assert f"newer: expected {PACKAGE} >=0.6, found 0.3" in message
    assert f"gone: {PACKAGE}.library:vanished does not exist" in message
    assert "no-module:" in message
    assert "no-class:" in message
    assert "no Absent in" in message
    assert f"changed: expected {PACKAGE}.library:speak(text, volume), found (text)" in message
    assert "fine" not in message
    assert package.speak is original
    assert patches.applied() == ()


@pytest.mark.parametrize("version", ["0.7.1", "0.4", "unreadable"])
def test_another_version_is_an_error_not_a_silent_skip(package, version: str) -> None:
    sys.modules[PACKAGE].__version__ = version  # type: ignore[attr-defined]
    with pytest.raises(PatchError, match=f"expected {PACKAGE} ==0.3, found {version}"):
        registry(record()).apply()


def test_an_inherited_method_is_no_target(package) -> None:
    class Child(package.Speaker):
        pass

    package.Child = Child
    with pytest.raises(PatchError, match="Child.ask does not exist"):
        registry(dataclasses.replace(METHOD, target=f"{PACKAGE}.library:Child.ask")).apply()


def test_the_shipped_records_are_complete_and_distinct() -> None:
    assert len({patch.id for patch in PATCHES}) == len(PATCHES)
    assert len({patch.target for patch in PATCHES}) == len(PATCHES)
    for patch in PATCHES:
        for field in dataclasses.fields(patch):
            assert getattr(patch, field.name) not in ("", ()), f"{patch.id}.{field.name} is empty"
        with pytest.raises(dataclasses.FrozenInstanceError):
            patch.why = "changed"  # type: ignore[misc]
