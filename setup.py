"""The folders of this project as subpackages of `penumbra`: everything else about it is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("artifacts", "flows", "models", "prompts", "tasks")

setup(
    packages=[
        "penumbra",
        *(
            f"penumbra.{package}"
            for room in ROOMS
            for package in (room, *(f"{room}.{inner}" for inner in find_packages(room)))
        ),
    ],
    package_dir={"penumbra": "penumbra", **{f"penumbra.{room}": room for room in ROOMS}},
)
