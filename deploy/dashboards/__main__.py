"""Write the JSON of every dashboard into the chart: `python -m deploy.dashboards`."""

from deploy.dashboards.boards import rendered
from deploy.dashboards.chart import FILES


def main() -> None:
    """Write each file, and remove those of dashboards that are no more."""
    FILES.mkdir(exist_ok=True)
    texts = rendered()
    for file in FILES.glob("*.json"):
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        (FILES / name).write_text(text)


if __name__ == "__main__":
    main()
