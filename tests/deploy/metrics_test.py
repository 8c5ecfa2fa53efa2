#!/usr/bin/env python3
"""/metrics is what Prometheus expects, and holds whatever rules and dashboards ask for."""

import json
import re
import shutil
import subprocess
import tempfile
import unittest

from kilnd import ROOT, Kilnd, eventually, make_graph, need, shared_tier

try:
    import yaml
except ImportError:
    from kilnd import skip

    skip("python3-yaml is not installed")

PROMTOOL = need("promtool")
RULES = [ROOT / "deploy/prometheus" / name for name in ("recording.yml", "alerts.yml")]
DASHBOARD = ROOT / "deploy/grafana/dashboards/kiln.json"
# Only with TLS, and where a tier is shared, which takes a Redis.
OPTIONAL = ("kiln_tls_",) + (() if shutil.which("redis-server") else ("kiln_remote_",))
# What Prometheus adds to every series.
TARGET_LABELS = {"job", "instance", "le", "namespace", "pod"}


def rule_expressions() -> dict[str, str]:
    found = {}
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                found[rule.get("record") or rule["alert"]] = rule["expr"]
    return found


def panel_expressions() -> dict[str, str]:
    board = json.loads(DASHBOARD.read_text())
    found = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for annotation in board["annotations"]["list"]:
        found[annotation["name"]] = annotation["expr"]
    return {
        name: expr.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
        for name, expr in found.items()
    }


def metric_names(expr: str) -> set[str]:
    """Of series that kilnd serves: recorded ones have a colon before or after."""
    return set(re.findall(r"(?<![\w:])((?:kiln|process)_\w+)(?![\w:])", expr))


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with shared_tier() as flags, Kilnd(*flags) as server:
            graph = make_graph(server.folder, "g")
            for _ in range(2):  # a compile, then a hit
                done = server.kiln("compile", graph, "-o", str(server.folder / "out"))
                assert done.returncode == 0, done.stderr
            refused = server.kiln("compile", make_graph(server.folder, "bad", op="nonsense", size=3))
            assert refused.returncode == 4, refused
            if flags:  # what is shared is written in the background
                eventually(lambda: "kiln_remote_writes_total{" in server.get("/metrics"), 5)
            cls.text = server.get("/metrics")
        cls.labels: dict[str, set[str]] = {}
        for line in cls.text.splitlines():
            if match := re.match(r"(\w+)(?:\{(.*)\})? \S+$", line):
                names = re.findall(r'(\w+)="', match[2] or "")
                cls.labels.setdefault(match[1], set()).update(names)

    def test_load_counts_for_the_tenant_that_the_environment_names(self) -> None:
        load = ("load", "fetch", "--keys", "5", "--duration", "0.2", "--warmup", "0")
        with Kilnd("--anonymous-role=admin") as server:  # it brings entries of its own
            done = server.kiln(*load, KILN_TENANT="nightly")
            self.assertEqual(done.returncode, 0, done.stderr)
            hits = r'^kiln_tenant_hits_total{tenant="nightly"} [1-9]'
            self.assertTrue(re.search(hits, server.get("/metrics"), re.M))
            refused = server.kiln(*load, KILN_TENANT="no name")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("tenant is 'no name'", refused.stderr)

    def test_promtool_finds_nothing_to_say(self) -> None:
        done = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=self.text, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_every_metric_of_rules_and_panels_is_served(self) -> None:
        expressions = {**rule_expressions(), **panel_expressions()}
        self.assertGreater(len(expressions), 60)
        used = {n: name for name, expr in expressions.items() for n in metric_names(expr)}
        self.assertGreater(len(used), 30)
        for metric, where in sorted(used.items()):
            with self.subTest(metric=metric, where=where):
                self.assertTrue(metric.startswith(OPTIONAL) or metric in self.labels)

    def test_every_label_of_rules_and_panels_is_on_its_metric(self) -> None:
        checked = 0
        for where, expr in {**rule_expressions(), **panel_expressions()}.items():
            for metric, matchers in re.findall(r"(?<![\w:])(kiln_\w+)\{([^}]*)\}", expr):
                if metric.startswith(OPTIONAL):
                    continue
                used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers)) - TARGET_LABELS
                with self.subTest(where=where, metric=metric):
                    self.assertLessEqual(used, self.labels[metric])
                checked += 1
            names = [n for n in metric_names(expr) if not n.startswith(OPTIONAL)]
            known = set().union(TARGET_LABELS, *(self.labels[n] for n in names))
            for grouping in re.findall(r"\bby \(([^)]*)\)", expr) if names else []:
                with self.subTest(where=where):
                    self.assertLessEqual({g.strip() for g in grouping.split(",")}, known)
        self.assertGreater(checked, 40)

    def test_recorded_series_that_alerts_use_are_recorded(self) -> None:
        expressions = rule_expressions()
        for name, expr in {**expressions, **panel_expressions()}.items():
            for series in re.findall(r"\b\w+:\w+:\w+\b", expr):
                with self.subTest(rule=name):
                    self.assertIn(series, expressions)

    def test_every_panel_parses(self) -> None:
        rules = [
            {"record": f"panel:{number}", "expr": expr}
            for number, expr in enumerate(panel_expressions().values())
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}, file)
            file.flush()
            done = subprocess.run(
                [PROMTOOL, "check", "rules", file.name], capture_output=True, text=True
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{len(rules)} rules found", done.stdout)

    def test_panels_have_places_of_their_own(self) -> None:
        taken = set()
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells

    def test_what_happened_was_counted(self) -> None:
        for sample in (
            r'kiln_compile_duration_seconds_count\{result="ok",target="cpp"\} 1',
            r'kiln_hit_duration_seconds_count\{tier="memory"\} 1',
            r'kiln_tenant_hits_total\{tenant="default"\} 1',
            r'kiln_job_queue_wait_duration_seconds_count\{priority="interactive"\} [12]',
            r'kiln_calls_rejected_total\{reason="(bad_graph|unsupported|invalid_argument)"\} [1-9]',
            r'kiln_rpc_sent_bytes_total\{method="\w+"\} [1-9]\d+',
        ):
            self.assertRegex(self.text, sample)


if __name__ == "__main__":
    unittest.main(verbosity=2)
