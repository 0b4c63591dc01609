"""Run a comparison of URLs as the command line does, without printing."""

from specjax.ab import run as running
from specjax.ab.arms import Ask, parse_arm
from specjax.ab.questions import Dataset, Question
from specjax.ab.records import read_log, start_log
from specjax.ab.start import open_arms

QUESTIONS = tuple(Question(f"q{i}", (f"question number {i}",)) for i in range(40))


def ask(**changes) -> Ask:
    usual = {"max_tokens": 20, "temperature": 0.0, "chat": False, "ignore_eos": False}
    return Ask(**usual | {"seed": 0, "timeout": 10.0, "extra": {}} | changes)


def compare_urls(folder, urls, num, tell=lambda line: None, asked=None, **plan):
    """Return the log of a comparison of URLs, by label, on the first ``num`` questions."""
    specs = [parse_arm(f"{label}={url}") for label, url in urls.items()]
    data, asked = [Dataset("stub", QUESTIONS[:num], "0" * 64)], asked or ask()
    plan = running.Plan(**plan)
    path = folder / "log.jsonl"
    log = running.check_log(path, running.wanted(specs, data, asked, plan))
    names = {"model": "", "served_model": None, "api_key": None, "concurrency": 32}
    with open_arms(specs, asked, show_progress=lambda line: None, **names) as arms:
        setting = running.Setting(arms, data, asked, None)
        if log is None:
            start_log(path, running.describe(specs, setting, plan, "test"))
            log = read_log(path)
        running.run(path, log, setting, plan, tell, tell)
    return read_log(path)
