"""Builds the wheels of a release and the sdist into dist/wheels, without a container, and checks them.

    tools/wheels.py                                  all of them
    tools/wheels.py x86_64-manylinux sdist           some of them
    tools/wheels.py --build-only x86_64-manylinux    no checks
    tools/wheels.py --install dist/wheels/….whl      installs a wheel where `make wheel-tests` looks for it

zig compiles for each C library, including old ones; wheels for macOS are built on macOS, without it. Two builds of one
commit are equal byte for byte: a wheel has no path of the machine, and its times are those of the commit, or of
SOURCE_DATE_EPOCH. Cargo's variables choose another profile: CARGO_PROFILE_RELEASE_LTO=off builds faster, for a trial.
rustup adds the targets, and an emulator for aarch64 is fetched.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".wheels"
RESULTS = ROOT / "dist" / "wheels"
LIBRARY = "headrace/_headrace.abi3.so"
MESSAGES = 10_000
#: The library with the unwinder of GCC, and the functions of it that Rust needs.
GCC_S = "libgcc_s.so.1"
UNWINDER = tuple(
    f"_Unwind_{name}"
    for name in (
        *("Backtrace", "DeleteException", "FindEnclosingFunction", "GetCFA", "GetDataRelBase", "GetIP", "GetIPInfo"),
        *("GetLanguageSpecificData", "GetRegionStart", "GetTextRelBase", "RaiseException", "Resume", "SetGR", "SetIP"),
    )
)
#: The path in wheels that replaces the folder of the clone.
CLONE = Path("/headrace")


@dataclass(frozen=True)
class Target:
    """The platform of a wheel."""

    rust: str
    #: The platform tag to request.
    compatibility: str
    #: The tag that auditwheel and the file name must have.
    tag: str

    @property
    def is_apple(self) -> bool:
        """Whether Apple's linker is needed."""
        return self.rust.endswith("-apple-darwin")


TARGETS = {
    "x86_64-manylinux": Target("x86_64-unknown-linux-gnu", "manylinux2014", "manylinux_2_17_x86_64"),
    "aarch64-manylinux": Target("aarch64-unknown-linux-gnu", "manylinux2014", "manylinux_2_17_aarch64"),
    "x86_64-musllinux": Target("x86_64-unknown-linux-musl", "musllinux_1_2", "musllinux_1_2_x86_64"),
    "aarch64-musllinux": Target("aarch64-unknown-linux-musl", "musllinux_1_2", "musllinux_1_2_aarch64"),
}
# Only on request, and only on macOS: zig does not have Apple's frameworks.
ON_MACOS = {
    "x86_64-macos": Target("x86_64-apple-darwin", "off", "macosx_10_12_x86_64"),
    "aarch64-macos": Target("aarch64-apple-darwin", "off", "macosx_11_0_arm64"),
}
SDIST = "sdist"


def main() -> int:
    targets = {**TARGETS, **ON_MACOS}
    names = [*targets, SDIST]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(names)}; without one all but those for macOS"
    )
    parser.add_argument("--build-only", action="store_true", help="check nothing")
    parser.add_argument(
        "--install", type=Path, metavar="WHEEL", help="build nothing, and install this one for the tests"
    )
    parser.add_argument("--only-tools", action="store_true", help="build nothing, and install what it takes to build")
    arguments = parser.parse_args()
    if arguments.only_tools:
        print(f"the tools are in {Path(tool('maturin')).parent}")
        return 0
    if arguments.install:
        print(install(arguments.install))
        return 0
    chosen = arguments.targets or [*TARGETS, SDIST]
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no target is called {', '.join(unknown)}: choose from {', '.join(names)}")
    started = time.monotonic()
    RESULTS.mkdir(parents=True, exist_ok=True)
    built = []
    for name in chosen:
        if name == SDIST:
            path = build_sdist()
            checks: list[Callable[[Path], str]] = [] if arguments.build_only else [twine, sdist_members, build_from]
        else:
            target = targets[name]
            path = build_wheel(name, target)
            checks = [] if arguments.build_only else [twine, no_machine_paths, libraries(target), abi3, *runs(name)]
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
        for check in checks:
            print(f"  {check(path)}", flush=True)
        built.append(path)
    print(f"dist/wheels has {len(built)} of them, after {time.monotonic() - started:.0f} s:")
    for path in built:
        print(f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    return 0


# Building


def build_wheel(name: str, target: Target) -> Path:
    add_rust_target(target.rust)
    with fresh_folder() as out:
        step(
            f"Building the wheel {name} (the first time some minutes)",
            *(tool("maturin"), "build", "--release", "--locked", "--interpreter", sys.executable),
            *(() if target.is_apple else ("--zig",)),
            *("--target", target.rust, "--compatibility", target.compatibility, "--out", out),
            environment={**reproducible(), **flags(*remapped(), *with_gcc_unwinder(target))},
        )
        (wheel,) = out.glob("*.whl")
        fix_wheel(wheel)
        return keep(wheel)


def build_sdist() -> Path:
    with fresh_folder() as out:
        step("Building the sdist", tool("maturin"), "sdist", "--out", out, environment=reproducible())
        (sdist,) = out.glob("*.tar.gz")
        fix_sdist(sdist)
        return keep(sdist)


def add_rust_target(rust: str) -> None:
    """Install the standard library of a target; without rustup, the compiler itself reports that it is missing."""
    if shutil.which("rustup"):
        step(f"Adding the Rust target {rust}", "rustup", "target", "add", rust)


def reproducible() -> dict[str, str]:
    """The environment of a build that another machine can reproduce."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
    tools = Path(tool("maturin")).parent
    return {"SOURCE_DATE_EPOCH": epoch, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "CARGO_INCREMENTAL": "0"}


def remapped() -> list[str]:
    """Flags with which rustc replaces each folder of this machine by a name. The last that matches counts.

    The C code of the crates contains no file names, because its assertions are off.
    """
    folders = {
        cargo_home(): "/cargo",
        # Where rust-src is installed, code inlined from the standard library has paths in this folder.
        Path(output("rustc", "--print", "sysroot")) / "lib/rustlib/src/rust": f"/rustc/{rust_commit()}",
        Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute(): "/target",
        ROOT: CLONE,
    }
    return [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]


def with_gcc_unwinder(target: Target) -> list[str]:
    """Flags with which a library for glibc uses the unwinder of GCC, as glibc itself does.

    zig would link its own. glibc ends a thread with GCC's unwinder, which passes through frames of the library: this is
    how Python ends a daemon thread that is in a call at exit, and with two unwinders it causes a segmentation fault.
    The stand-in that is linked has only the names, and its path is relative because rustc derives symbol names from its
    flags.
    """
    if "linux-gnu" not in target.rust:
        return []
    stand_in = Path(".wheels", "gcc_s", target.rust, GCC_S)
    (ROOT / stand_in).parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / stand_in.with_suffix(".c")
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in UNWINDER))
    zig_target = target.rust.replace("-unknown", "")
    options = ("-shared", "-nostdlib", f"-Wl,-soname,{GCC_S}")
    output(tool("python-zig"), "cc", "-target", zig_target, *options, "-o", ROOT / stand_in, source)
    return [f"-Clink-arg={stand_in}"]


def flags(*all_of_them: str) -> dict[str, str]:
    """These flags for rustc, after those of the caller."""
    return {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join([*os.environ.get("RUSTFLAGS", "").split(), *all_of_them])}


def fix_wheel(wheel: Path) -> None:
    """Make the SBOM that maturin wrote reproducible, and the links of the metadata absolute."""
    with zipfile.ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    changed = {}
    for info, content in members.items():
        if "/sboms/" in info.filename and info.filename.endswith(".cyclonedx.json"):
            changed[info.filename] = reproducible_sbom(content)
        elif info.filename.endswith(".dist-info/METADATA"):
            changed[info.filename] = with_absolute_links(content)
    if len(changed) != 2:
        sys.exit(f"{wheel.name} should have one SBOM of crates and METADATA, and has of them: {', '.join(changed)}")
    with zipfile.ZipFile(wheel, "w") as archive:
        for info, content in members.items():
            if info.filename.endswith(".dist-info/RECORD"):
                content = record_with(changed, content)
            archive.writestr(info, changed.get(info.filename, content), zipfile.ZIP_DEFLATED)


def fix_sdist(sdist: Path) -> None:
    """Make the links of the metadata absolute, and those of README.md: it is the metadata of wheels built from it."""
    with tarfile.open(sdist) as archive:
        members = [(info, file.read()) for info in archive if (file := archive.extractfile(info))]
    # The header has a time: that of the commit is in the members.
    with gzip.GzipFile(sdist, "wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for info, content in members:
            if info.name.partition("/")[2] in ("PKG-INFO", "README.md"):
                content = with_absolute_links(content)
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def with_absolute_links(metadata: bytes) -> bytes:
    """Return a text that contains the README, with its links as tools/readme_for_index.py writes them."""
    readme = (ROOT / "README.md").read_bytes().strip()
    if metadata.count(readme) != 1:
        sys.exit(f"the metadata should have README.md once, and has it {metadata.count(readme)} times")
    return metadata.replace(readme, output(sys.executable, "tools/readme_for_index.py", "README.md").encode())


def reproducible_sbom(content: bytes) -> bytes:
    """Return the SBOM without the random number, the time and the folder of the clone."""
    sbom = json.loads(content.replace(ROOT.as_uri().encode(), CLONE.as_uri().encode()))
    sbom.pop("serialNumber", None)
    sbom["metadata"].pop("timestamp", None)
    return json.dumps(sbom, indent=2, ensure_ascii=False).encode() + b"\n"


def record_with(changed: Mapping[str, bytes], record: bytes) -> bytes:
    """Return the list of members and their hashes, updated for the changed ones."""
    rows = list(csv.reader(record.decode().splitlines()))
    for row in rows:
        if (content := changed.get(row[0])) is not None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            row[1:] = [f"sha256={digest}", str(len(content))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def keep(path: Path) -> Path:
    """Move it to the results, replacing an older version for the same platform."""
    pattern = re.sub(r"^headrace-[^-]+?(-.*\.whl|\.tar\.gz)$", r"headrace-*\1", path.name)
    for old in RESULTS.glob(pattern):
        old.unlink()
    return Path(shutil.move(path, RESULTS / path.name))


# Checks


def twine(path: Path) -> str:
    said = output(tool("twine"), "--no-color", "check", "--strict", path)
    return f"twine: {said.splitlines()[-1].partition(': ')[2]}"


def no_machine_paths(wheel: Path) -> str:
    """Check that no member names a folder of this machine: cargo's, the compiler's, the clone's, the user's."""
    folders = {ROOT, cargo_home(), Path(output("rustc", "--print", "sysroot")), Path.home()}
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    found = [
        f"{name} has {folder} {count} times"
        for name, content in members.items()
        for folder in sorted(folders)
        # A folder of a few letters would be found by chance.
        if len(str(folder)) > 3 and (count := content.count(f"{folder}/".encode()))
    ]
    if found:
        sys.exit(f"{wheel.name} has paths of this machine: {'; '.join(found)}")
    return "paths: none of this machine"


def libraries(target: Target) -> Callable[[Path], str]:
    """Make a check that the wheel runs wherever its tag promises."""

    def by_auditwheel(wheel: Path) -> str:
        said = " ".join(output(tool("auditwheel"), "show", wheel).split())
        match = re.search(r'is consistent with the following platform tag: "([^"]+)"', said)
        if not match or match[1] != target.tag or target.tag not in wheel.name:
            sys.exit(f"{wheel.name} should be {target.tag}, and auditwheel says: {said}")
        with unpacked(wheel, LIBRARY) as library:
            symbols = output("readelf", "--dyn-syms", "--wide", library)
        if not re.search(r" UND _Unwind_RaiseException\b", symbols):
            sys.exit(f"{wheel.name} has an unwinder of its own, and needs that of {GCC_S}")
        return f"auditwheel: {match[0]}"

    def by_readelf(wheel: Path) -> str:
        # auditwheel cannot read these on a machine with glibc, where libc.so is a linker script.
        with unpacked(wheel, LIBRARY) as library:
            needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "--dynamic", "--wide", library))
            symbols = output("readelf", "--dyn-syms", "--wide", library)
        if needed != ["libc.so"] or "GLIBC" in symbols or target.tag not in wheel.name:
            sys.exit(f"{wheel.name} needs {needed}; a wheel for musl needs libc.so alone, and no symbol of glibc")
        return f"readelf: needs {', '.join(needed)} alone, {symbols.count(' UND ')} undefined symbols, none of glibc"

    def by_name(wheel: Path) -> str:
        if target.tag not in wheel.name:
            sys.exit(f"{wheel.name} should be {target.tag}")
        return f"name: {target.tag}"

    if target.is_apple:
        return by_name
    return by_auditwheel if "manylinux" in target.tag else by_readelf


def abi3(wheel: Path) -> str:
    if "-cp311-abi3-" not in wheel.name:
        sys.exit(f"{wheel.name} is not for the stable ABI of Python 3.11 and newer")
    said = " ".join(output(tool("abi3audit"), "--strict", "--summary", wheel, errors=True).split())
    match = re.search(r"\d+ extensions? scanned;.*", said)
    return f"abi3audit: {match[0] if match else said}"


def sdist_members(sdist: Path) -> str:
    """Check that the sdist has what a build needs, and no tests or tools."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := {"Cargo.lock", "Cargo.toml", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} - names:
        sys.exit(f"{sdist.name} has no {', '.join(sorted(missing))}")
    if odd := sorted({name.partition("/")[0] for name in names} & {"tests", "benches", "tools", "docs", "examples"}):
        sys.exit(f"{sdist.name} has {', '.join(odd)}")
    return f"members: {len(names)}, with Cargo.lock and LICENSE"


def build_from(sdist: Path) -> str:
    """Build a wheel with pip from the sdist, and import it."""
    with fresh_folder() as out:
        step(
            "Building a wheel from the sdist (the first time some minutes)",
            *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", out, sdist),
            environment={"CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR") or str(ROOT / "target")},
        )
        (wheel,) = out.glob("*.whl")
        with unpacked(wheel) as folder:
            said = output(sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {IMPORT}")
        return f"build: {wheel.name}, which imports as {said}"


def runs(name: str) -> list[Callable[[Path], str]]:
    """The checks that the wheel runs. Those for musl would need a Python for musl."""
    if name == "aarch64-manylinux" and platform.machine() != "aarch64":
        return [emulate]
    here = "macos" if sys.platform == "darwin" else "manylinux"
    return [install] if name == f"{platform.machine().replace('arm64', 'aarch64')}-{here}" else []


def install(wheel: Path) -> str:
    """Install the wheel in a separate environment, in which `make wheels` then runs the tests."""
    folder = environment("test", test_packages())
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
    step("Installing the wheel", *pip, "--no-deps", "--force-reinstall", wheel)
    said = output(folder / "bin" / "python", "-I", "-c", IMPORT)
    return f"install: in an environment of its own, imports as {said}"


def test_packages() -> list[str]:
    """The packages of the extra `test`, except Spark."""
    extras = extras_of_the_project()

    def expand(line: str) -> Iterator[str]:
        if match := re.fullmatch(r"headrace\[(.+)\]", line):
            for extra in match[1].split(","):
                for inner in extras[extra]:
                    yield from expand(inner)
        elif not line.startswith("pyspark"):
            yield line

    return sorted({*expand("headrace[test]")})


def emulate(wheel: Path) -> str:
    """Write messages to a real server with the wheel, in an emulated Python for aarch64."""
    folder = WORK / "aarch64"
    step("Fetching an emulator and a Python for aarch64", ROOT / "tools" / "get_aarch64_python.sh", folder)
    servers = Path(os.environ.get("HEADRACE_TEST_SERVERS") or ROOT / ".servers")
    with unpacked(wheel) as package, server(servers / "redis-8.6") as socket:
        arguments = (ROOT / "tools" / "try_wheel.py", MESSAGES, socket)
        said = output("env", f"PYTHONPATH={package}", folder / "python", "-s", *arguments)
        stored = output(servers / "redis-8.6-cli", "-s", socket, "xlen", "s")
    if stored != str(MESSAGES):
        sys.exit(f"the server has {stored} of {MESSAGES} entries, and headrace says: {said}")
    return f"emulated: {said}; the server has {stored} entries"


IMPORT = "import headrace, headrace._headrace as _; print(headrace.__version__)"


@contextmanager
def server(program: Path) -> Iterator[Path]:
    """Run a server on a Unix socket, which exists when the block begins."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        socket = Path(folder, "s")
        words = [program, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            if not any("ready to accept connections" in line.lower() for line in process.stdout):
                sys.exit(f"{program} did not start")
            yield socket
        finally:
            process.terminate()
            process.communicate()


# The machine


def tool(name: str) -> str:
    """A program of the extra `wheels`."""
    return str(environment("tools", extras_of_the_project()["wheels"]) / "bin" / name)


def environment(name: str, packages: list[str]) -> Path:
    """A virtual environment with only these packages, made on the first call."""
    folder = WORK / name
    wanted = "\n".join([sys.version, *packages])
    stamp = folder / ".packages"
    if not stamp.exists() or stamp.read_text() != wanted:
        step(f"Making the environment {name}", sys.executable, "-m", "venv", "--clear", folder)
        python = folder / "bin" / "python"
        step("Installing its packages (the first time some minutes)", python, "-m", "pip", "install", *packages)
        stamp.write_text(wanted)
    return folder


def extras_of_the_project() -> dict[str, list[str]]:
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return extras


def cargo_home() -> Path:
    return Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo").absolute()


def rust_commit() -> str:
    match = re.search(r"^commit-hash: (\w+)$", output("rustc", "--version", "--verbose"), re.MULTILINE)
    return match[1] if match else "unknown"


@contextmanager
def fresh_folder() -> Iterator[Path]:
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        yield Path(folder)


@contextmanager
def unpacked(wheel: Path, member: str = "") -> Iterator[Path]:
    """Unpack the wheel: the folder with all members, or the path of one."""
    with fresh_folder() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        yield folder / member


def step(title: str, *words: object, environment: Mapping[str, str] | None = None) -> None:
    """Run a long command, and show that it is running."""
    command = [str(ROOT / "tools" / "step.sh"), title, *map(str, words)]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False).returncode:
        sys.exit(1)


def output(*words: object, errors: bool = False) -> str:
    """Return what a command prints; with `errors`, including stderr."""
    stderr = subprocess.STDOUT if errors else subprocess.PIPE
    done = subprocess.run(
        list(map(str, words)), cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{Path(str(words[0])).name} failed with status {done.returncode}: {done.stdout}{done.stderr or ''}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
