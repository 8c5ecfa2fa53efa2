#!/usr/bin/env python3
"""A client's trace goes on through the server's spans, which arrive as OTLP over HTTP."""

import http.server
import json
import re
import threading
import unittest

from kilnd import Kilnd, eventually, make_graph

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER_SPAN}-01"

# Field names of opentelemetry-proto's trace.proto, as its JSON mapping writes them.
FIELDS = {
    "request": {"resourceSpans"},
    "resourceSpans": {"resource", "scopeSpans", "schemaUrl"},
    "scopeSpans": {"scope", "spans", "schemaUrl"},
    "span": {
        "traceId", "spanId", "traceState", "parentSpanId", "flags", "name", "kind",
        "startTimeUnixNano", "endTimeUnixNano", "attributes", "droppedAttributesCount", "events",
        "droppedEventsCount", "links", "droppedLinksCount", "status",
    },
    "link": {"traceId", "spanId", "traceState", "attributes", "droppedAttributesCount", "flags"},
    "status": {"message", "code"},
    "attribute": {"key", "value"},
    "value": {"stringValue", "boolValue", "intValue", "doubleValue", "arrayValue", "kvlistValue",
              "bytesValue"},
}  # fmt: skip


class Collector(http.server.ThreadingHTTPServer):
    """Keeps every span that it is sent, and what was wrong with any."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.bodies: list[bytes] = []
        self.spans: list[dict] = []
        self.wrong: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *arguments: object) -> None:
        self.shutdown()
        super().__exit__(*arguments)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fields(self, kind: str, found: dict) -> dict:
        if not set(found) <= FIELDS[kind]:
            self.wrong.append(f"{kind} has {set(found) - FIELDS[kind]}")
        return found

    def attributes(self, found: list[dict]) -> None:
        for attribute in found:
            value = self.fields("value", self.fields("attribute", attribute)["value"])
            if len(value) != 1 or not isinstance(value.get("intValue", ""), str):
                self.wrong.append(f"attribute {attribute}")

    def span(self, span: dict) -> None:
        self.fields("span", span)
        for name, pattern in {
            "traceId": r"[0-9a-f]{32}",
            "spanId": r"[0-9a-f]{16}",
            "parentSpanId": r"[0-9a-f]{16}|",
            "startTimeUnixNano": r"\d{19}",
            "endTimeUnixNano": r"\d{19}",
        }.items():
            if not re.fullmatch(pattern, span.get(name, "")):
                self.wrong.append(f"{name} is {span.get(name)!r}")
        if int(span["endTimeUnixNano"]) < int(span["startTimeUnixNano"]):
            self.wrong.append(f"{span['name']} ends before it starts")
        if span["kind"] not in range(1, 6) or span.get("status", {}).get("code", 0) not in range(3):
            self.wrong.append(f"kind or status of {span['name']}")
        self.attributes(span.get("attributes", []))
        for link in span.get("links", []):
            self.fields("link", link)
        self.spans.append(span)

    def take(self, body: bytes) -> None:
        request = self.fields("request", json.loads(body))
        with self.lock:
            self.bodies.append(body)
            for resource in request["resourceSpans"]:
                self.attributes(self.fields("resourceSpans", resource)["resource"]["attributes"])
                for scope in resource["scopeSpans"]:
                    for span in self.fields("scopeSpans", scope)["spans"]:
                        self.span(span)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        right = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
        if not right:
            self.server.wrong.append(f"POST {self.path} {self.headers['Content-Type']}")
        self.server.take(body)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def attributes(span: dict) -> dict:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


class TracesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with Collector() as collector, Kilnd(f"--otlp-endpoint={collector.url}") as server:
            graph = make_graph(server.folder, 'a "graph" \\ \n<name>')
            for _ in range(2):
                done = server.kiln(
                    "compile", graph, "-o", str(server.folder / "out"), TRACEPARENT=TRACEPARENT
                )
                assert done.returncode == 0, done.stderr
            server.kiln("status")
            cls.metrics = server.get("/metrics")
            cls.exit_code = server.stop()  # flushes
            cls.log = server.log()
            cls.spans, cls.wrong, cls.bodies = collector.spans, collector.wrong, collector.bodies
        cls.mine = [span for span in cls.spans if span["traceId"] == TRACE]

    def named(self, name: str) -> list[dict]:
        return [span for span in self.mine if span["name"] == name]

    def parent(self, span: dict) -> dict:
        found = [s for s in self.mine if s["spanId"] == span["parentSpanId"]]
        self.assertEqual(len(found), 1, span)
        return found[0]

    def test_the_json_is_what_otlp_says(self) -> None:
        self.assertTrue(self.bodies)
        self.assertEqual(self.wrong, [])
        self.assertEqual(self.exit_code, 0)

    def test_opentelemetrys_own_parser_takes_it(self) -> None:
        try:
            from google.protobuf import json_format
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
        except ImportError:
            self.skipTest("opentelemetry-proto is not installed")
        parsed = 0
        for body in self.bodies:
            request = trace_service_pb2.ExportTraceServiceRequest()
            json_format.Parse(body, request)
            parsed += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
        self.assertEqual(parsed, len(self.spans))

    def test_calls_are_children_of_the_clients_span(self) -> None:
        calls = [s for s in self.mine if s["name"].startswith("kiln.v1.CompileService/")]
        self.assertLessEqual({"Compile", "Fetch"}, {s["name"].rsplit("/")[-1] for s in calls})
        for call in calls:
            self.assertEqual((call["parentSpanId"], call["kind"]), (CALLER_SPAN, 2))
            self.assertEqual(attributes(call)["rpc.system"], "grpc")

    def test_a_compile_goes_down_to_its_kernels(self) -> None:
        (job,) = self.named("job")
        self.assertTrue(self.parent(job)["name"].endswith("/Compile"))
        self.assertEqual(attributes(job)["kiln.source"], "compiled")
        for name in ("queue", "plan", "kernel_lookup", "compile", "link", "store"):
            (stage,) = self.named(name)
            self.assertEqual(self.parent(stage), job)
        (kernel,) = self.named("kernel")
        for part in [kernel, *self.named("routine")]:
            self.assertEqual(self.parent(part)["name"], "compile")
        inner = [s for s in self.mine if s["parentSpanId"] == self.named("plan")[0]["spanId"]]
        self.assertGreaterEqual(len(inner), 3, "stages of the plan")

    def test_reads_of_stores_say_what_they_found(self) -> None:
        reads = self.named("cache get")
        parents = {self.parent(read)["name"].rsplit("/")[-1] for read in reads}
        self.assertLessEqual({"Fetch", "Compile", "kernel_lookup"}, parents)
        hits = [attributes(read) for read in reads if attributes(read)["kiln.cache.hit"]]
        self.assertIn("memory", [hit["kiln.cache.tier"] for hit in hits])

    def test_children_lie_within_their_parents(self) -> None:
        slack_ns = 2_000_000  # of clocks read at different places
        for span in self.mine:
            if span["parentSpanId"] == CALLER_SPAN:
                continue
            parent = self.parent(span)
            start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            self.assertGreaterEqual(start, int(parent["startTimeUnixNano"]) - slack_ns, span)
            self.assertLessEqual(end, int(parent["endTimeUnixNano"]) + slack_ns, span)

    def test_a_call_without_a_trace_begins_one(self) -> None:
        others = [s for s in self.spans if s["traceId"] != TRACE]
        self.assertTrue([s for s in others if s["name"].endswith("/GetServerInfo")])
        self.assertTrue(all(not s.get("parentSpanId") for s in others if s["kind"] == 2))

    def test_log_lines_have_the_trace(self) -> None:
        calls = [line for line in self.log if line["message"] == "call"]
        traced = [line for line in calls if line["trace"] == TRACE]
        self.assertGreaterEqual(len(traced), 3)
        for line in traced:
            self.assertEqual(line["tenant"], "default")
        self.assertTrue([line for line in traced if line["outcome"] == "OK" and line["bytes"] > 0])
        (compiled,) = [line for line in self.log if line["message"] == "compile"]
        self.assertEqual(compiled["trace"], TRACE)
        self.assertEqual(compiled["graph"], 'a "graph" \\ \n<name>')

    def test_spans_were_counted(self) -> None:
        self.assertRegex(self.metrics, r"kiln_trace_spans_exported_total \d+")
        self.assertRegex(self.metrics, r'kiln_trace_spans_dropped_total\{reason="queue_full"\} 0')


class CollectorAwayTest(unittest.TestCase):
    def test_a_collector_that_is_away_costs_spans_only(self) -> None:
        with Kilnd("--otlp-endpoint=http://127.0.0.1:1") as server:
            done = server.kiln("status")
            self.assertEqual(done.returncode, 0, done.stderr)
            lost = r'kiln_trace_spans_dropped_total\{reason="unreachable"\} [1-9]'
            self.assertTrue(eventually(lambda: re.search(lost, server.get("/metrics"))))
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
