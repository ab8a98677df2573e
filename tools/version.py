#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The version and the date of a release, in every file that has them.

    tools/version.py check                  exit status 1 if files disagree
    tools/version.py set VERSION DATE       writes both, and closes the section of CHANGELOG.md with entries to come
    tools/version.py changes VERSION        prints that section of CHANGELOG.md

`--root FOLDER` before these is another checkout. DATE is such as 2026-11-24.
"""

import datetime
import pathlib
import re
import sys

# Pattern of each place, with the version or the date as its group; the first of VERSIONS counts.
VERSIONS = [
    ("Cargo.toml", r'(?<=\[workspace\.package\]\nversion = ")([^"]*)'),
    ("Cargo.toml", r'(?<=\{ version = ")([^"]*)(?=", path = ")'),
    ("meson.build", r"(?<=^project\('frameshare', version: ')([^']*)"),
    ("packaging/debian/changelog", r"\Aframeshare \(([^)]*)-1\)"),
    ("crates/frameshare-c/tests/c/contract.c", r'(?<=frameshare_version \(\), ")([^"]*)'),
    ("crates/frameshare-c/Cargo.toml", r"(?<=libframeshare\.so\.)([0-9.]*[0-9])"),
]
LOCKS = ["Cargo.lock", "tests/fuzz/Cargo.lock"]
DEBIAN = "packaging/debian/changelog"
PLUGIN = "plugins/frameshare/Cargo.toml"
RELEASE_DATE = re.compile(r'(?<=^release_date = ")([^"]*)', re.MULTILINE)
SIGNED = re.compile(r"^ -- (.*)  (.*)$", re.MULTILINE)
TO_COME = re.compile(r"^## Unreleased.*\n", re.MULTILINE)
VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


class Refused(Exception):
    pass


def places(root):
    """File and value of each place that has the version."""
    for name, pattern in VERSIONS:
        found = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        if not found:
            raise Refused(f"{name}: no version is found")
        yield from ((name, value) for value in found)
    for name in LOCKS:
        for package, value in own_packages((root / name).read_text()):
            yield f"{name}: {package}", value


def own_packages(lock):
    """Name and version of the packages of a lock file that come from here; those of tests alone are 0.0.0."""
    for block in lock.split("\n[[package]]\n")[1:]:
        name, version = re.match(r'name = "(.*)"\nversion = "(.*)"', block).groups()
        if "\nsource = " not in block and version != "0.0.0":
            yield name, version


def dates(root):
    day = RELEASE_DATE.search((root / PLUGIN).read_text())
    signed = SIGNED.search((root / DEBIAN).read_text())
    if not day or not signed:
        raise Refused(f"{PLUGIN} or {DEBIAN}: no date is found")
    return day[1], datetime.datetime.strptime(signed[2], "%a, %d %b %Y %H:%M:%S %z").strftime("%Y-%m-%d")


def check(root):
    found = list(places(root))
    version = found[0][1]
    wrong = [f"{place} has version {value}: expected {version}" for place, value in found if value != version]
    plugin, debian = dates(root)
    if plugin != debian:
        wrong.append(f"{PLUGIN} has release_date {plugin}: expected {debian}, the date of {DEBIAN}")
    if wrong:
        raise Refused("\n".join(wrong))
    return version


def changes(root, version):
    text = (root / "CHANGELOG.md").read_text()
    match = re.search(rf"^## {re.escape(version)} .*\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    if not match:
        raise Refused(f"CHANGELOG.md has no section {version}: run tools/version.py set")
    return match[1].strip()


def edit(root, name, change):
    file = root / name
    file.write_text(change(file.read_text()))


def set_version(root, version, date):
    old = check(root)
    if not VERSION.fullmatch(version):
        raise Refused(f'invalid version "{version}": expected three numbers, such as 0.2.0')
    if [*map(int, version.split("."))] < [*map(int, old.split("."))]:
        raise Refused(f"version {version} is older than the present one, {old}")
    day = datetime.datetime.strptime(date, "%Y-%m-%d").replace(hour=12, tzinfo=datetime.timezone.utc)
    section = re.search(r"^## Unreleased.*\n((?:(?!## ).*\n)*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not section or "\n- " not in section[1]:
        raise Refused("CHANGELOG.md has no entries under Unreleased: nothing to release")

    for name, pattern in VERSIONS:
        if name != DEBIAN:
            edit(root, name, lambda text, pattern=pattern: re.sub(pattern, version, text, flags=re.MULTILINE))
    for name in LOCKS:
        edit(root, name, lambda text: lock_with(text, version))
    edit(root, PLUGIN, lambda text: RELEASE_DATE.sub(date, text))
    edit(root, DEBIAN, lambda text: debian_with(text, old, version, day))
    edit(root, "CHANGELOG.md", lambda text: TO_COME.sub(f"## Unreleased\n\n## {version} ({date})\n", text, count=1))
    check(root)


def lock_with(text, version):
    for name, old in set(own_packages(text)):
        text = text.replace(f'name = "{name}"\nversion = "{old}"\n', f'name = "{name}"\nversion = "{version}"\n')
    return text


def debian_with(text, old, version, day):
    signed = SIGNED.search(text)
    stamp = day.strftime("%a, %d %b %Y %H:%M:%S +0000")
    if version == old:
        return text.replace(signed[0], f" -- {signed[1]}  {stamp}", 1)
    entry = f"frameshare ({version}-1) unstable; urgency=medium\n\n  * New release: see CHANGELOG.md.\n\n"
    return f"{entry} -- {signed[1]}  {stamp}\n\n{text}"


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--root"] and len(arguments) > 1:
        root, arguments = pathlib.Path(arguments[1]), arguments[2:]
    try:
        match arguments:
            case ["check"]:
                print(check(root))
            case ["set", version, date]:
                set_version(root, version, date)
            case ["changes", version]:
                print(changes(root, version))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (Refused, ValueError) as error:
        print(f"version: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
