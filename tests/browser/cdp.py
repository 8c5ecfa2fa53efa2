"""Drives a headless Chromium over the DevTools protocol, with nothing but the standard library."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request


class WebSocket:
    """A client's end of RFC 6455, as far as DevTools needs it: text messages, no extensions."""

    def __init__(self, url: str, timeout_s: float):
        host, port, path = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.unread = b""
        while b"\r\n\r\n" not in self.unread:
            self.unread += self._receive()
        head, self.unread = self.unread.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(f"no WebSocket at {url}: {head!r}")

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the browser has closed the connection")
        return data

    def _read(self, size: int) -> bytes:
        while len(self.unread) < size:
            self.unread += self._receive()
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    def send(self, text: str) -> None:
        data = text.encode()
        size = len(data)
        if size < 126:
            head = bytes([0x81, 0x80 | size])
        elif size < 1 << 16:
            head = bytes([0x81, 0xFE]) + size.to_bytes(2, "big")
        else:
            head = bytes([0x81, 0xFF]) + size.to_bytes(8, "big")
        # A mask of zeros is a mask.
        self.socket.sendall(head + bytes(4) + data)

    def receive(self) -> str:
        message = b""
        while True:
            first, second = self._read(2)
            size = second & 0x7F
            if size == 126:
                size = int.from_bytes(self._read(2), "big")
            elif size == 127:
                size = int.from_bytes(self._read(8), "big")
            data = self._read(size)
            if first & 0x0F == 8:
                raise ConnectionError("the browser has ended the session")
            if first & 0x0F in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    """One tab. Errors and warnings of its console, uncaught exceptions and failed requests gather in
    `problems`."""

    def __init__(self, url: str, timeout_s: float = 30):
        self.socket = WebSocket(url, timeout_s)
        self.timeout_s = timeout_s
        self.next_id = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self.next_id += 1
        self.socket.send(json.dumps({"id": self.next_id, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.next_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict) -> None:
        params = message.get("params", {})
        method = message.get("method")
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.problems.append(f"exception: {text}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            words = [str(a.get("value", a.get("description"))) for a in params["args"]]
            self.problems.append(f"console.{params['type']}: {' '.join(words)}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.problems.append(f"log: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def evaluate(self, script: str):
        """The value of an expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, script: str, what: str):
        """Until the expression is true."""
        end = time.monotonic() + self.timeout_s
        while time.monotonic() < end:
            value = self.evaluate(script)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {self.timeout_s:.0f} s for {what}; the page says: "
                             f"{self.evaluate('document.body.innerText')[:1500]}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", url)

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=phone)

    def color_scheme(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, "ArrowRight": 39,
                                             "ArrowDown": 40}.get(key, 0))

    def screenshot(self, path: str, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))


class Chromium:
    """A browser with a profile of its own, ended with the `with` block."""

    def __init__(self, program: str):
        self.program = program

    def __enter__(self) -> "Chromium":
        self.folder = tempfile.TemporaryDirectory(prefix="kiln-browser-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
             "--force-color-profile=srgb", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            match = re.search(r"DevTools listening on ws://([^/]+)/", line)
            if match:
                self.address = match[1]
                return self
        raise RuntimeError(f"{self.program} does not start (exit code {self.process.wait()})")

    def new_page(self) -> Page:
        request = urllib.request.Request(f"http://{self.address}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Page(json.load(answer)["webSocketDebuggerUrl"])

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        # Its other processes end a moment later, and write until then.
        for _ in range(30):
            shutil.rmtree(self.folder.name, ignore_errors=True)
            if not os.path.exists(self.folder.name):
                break
            time.sleep(0.1)
        self.folder.cleanup()
