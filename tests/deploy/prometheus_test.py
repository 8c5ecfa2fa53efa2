#!/usr/bin/env python3
"""A real Prometheus scrapes a real kilnd, evaluates every rule, and has data for every panel."""

import json
import pathlib
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

from kilnd import ROOT, Kilnd, eventually, free_port, make_graph, need, shared_tier
from metrics_test import OPTIONAL, panel_expressions, rule_expressions, yaml

PROMETHEUS = need("prometheus")
# What only shows where something went wrong.
QUIET = {"Restarts"}


class Prometheus:
    def __init__(self, folder: pathlib.Path, target: str) -> None:
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["recording.yml", "alerts.yml"],
            "scrape_configs": [
                {"job_name": "kiln", "static_configs": [{"targets": [target]}]},
            ],
        }
        for name in config["rule_files"]:
            rules = yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())
            for group in rules["groups"]:
                group.pop("interval", None)  # nobody waits half a minute here
            (folder / name).write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.address = f"127.0.0.1:{free_port()}"
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()

    def api(self, path: str, **parameters: str) -> dict:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{path}?{query}", timeout=10
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is about to start
                return {}
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return {}

    def query(self, expr: str) -> list:
        return self.api("query", query=expr).get("result", [])


class PrometheusTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        server = cls.enterClassContext(Kilnd(*cls.enterClassContext(shared_tier())))
        cls.prometheus = Prometheus(pathlib.Path(folder.name), server.http)
        cls.addClassCleanup(cls.prometheus.stop)
        scraped = eventually(lambda: cls.prometheus.query("kiln_build_info"), 30)
        assert scraped, pathlib.Path(folder.name, "log").read_text()[-2000:]
        # Rates need two samples: what happened before the first one does not count.
        for size in range(1, 4):
            for _ in range(2):
                done = server.kiln("compile", make_graph(server.folder, "g", size=size),
                                   "-o", str(server.folder / "out"))  # fmt: skip
                assert done.returncode == 0, done.stderr
        server.kiln("compile", make_graph(server.folder, "bad", op="nonsense", size=9))
        seen = eventually(
            lambda: cls.prometheus.query("rate(kiln_hit_duration_seconds_count[1m]) > 0"), 30
        )
        assert seen

    def test_the_target_is_up(self) -> None:
        (target,) = self.prometheus.api("targets")["activeTargets"]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))

    def test_every_rule_is_healthy_and_no_alert_fires(self) -> None:
        def rules() -> list:
            groups = self.prometheus.api("rules")["groups"]
            return [rule for group in groups for rule in group["rules"]]

        evaluated = eventually(lambda: all(r["health"] != "unknown" for r in rules()), 40)
        self.assertTrue(evaluated)
        self.assertEqual(len(rules()), len(rule_expressions()))
        for rule in rules():
            self.assertEqual(rule["health"], "ok", rule)
            if rule["type"] == "alerting":
                self.assertNotEqual(rule["state"], "firing", rule)

    def test_every_panel_has_data(self) -> None:
        for name, expr in panel_expressions().items():
            if name in QUIET or any(metric in expr for metric in OPTIONAL):
                continue
            with self.subTest(panel=name):
                self.assertTrue(eventually(lambda e=expr: self.prometheus.query(e), 5), expr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
