"""Options and markers of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write what was found over what was expected; then read it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only where they are asked for: `pytest -m slow`."""
    if "slow" in config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="slow; run with `pytest -m slow`")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
