#!/usr/bin/env python3
"""What `cmake --install` leaves behind is enough to build and run a C and a C++ program, without Kiln's
sources and without protobuf, and to start its server; and what the Debian packages hold."""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from kilnd import BUILD, ROOT, need, skip

GRAPH = ROOT / "deploy/graphs/bert-base.kgraph"
EXAMPLES = ROOT / "client/examples"


def run(*command: object, **more) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if not (BUILD / "lib/libkiln.so").exists() or not (BUILD / "bin/kiln").exists():
            skip("the client is not built")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kiln-install-"))
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        runtime = cls.folder / "runtime"
        runtime.mkdir(mode=0o700)
        # Examples name no server: the installed one starts by itself.
        kept = {n: v for n, v in os.environ.items() if not n.startswith("KILN")}
        cls.environment = {
            **kept,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_CACHE_HOME": str(cls.folder / "cache"),
            "PATH": f"{cls.prefix}/bin:{kept['PATH']}",
            "LD_LIBRARY_PATH": str(next(cls.prefix.rglob("libkiln.so.0")).parent),
            "PKG_CONFIG_PATH": str(next(cls.prefix.rglob("kiln.pc")).parent),
        }

    @classmethod
    def tearDownClass(cls) -> None:
        run(cls.prefix / "bin/kiln", "stop", env=cls.environment)
        shutil.rmtree(cls.folder)

    def check_run(self, program: pathlib.Path) -> None:
        text = run(program, GRAPH, env=self.environment)
        self.assertRegex(text, r"^(compiled|memory|disk|coalesced) in ")
        self.assertIn("output 1: ", text)
        # With nothing in the last layer but its bias, what comes out of it is tanh of that.
        weights = self.folder / "pooler.safetensors"
        weights.write_bytes(safetensors({"weight": [768, 768], "bias": [768]}, 0.5))
        text = run(program, GRAPH, weights, env=self.environment)
        self.assertIn("output 1: 0.462117 ...", text)
        weights.write_bytes(weights.read_bytes()[:-4])
        done = subprocess.run([program, GRAPH, weights], capture_output=True, text=True, env=self.environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("of the data, which has", done.stderr)

    def test_find_package_builds_the_examples(self):
        build = self.folder / "examples"
        run("cmake", "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        for name in ("bert_c", "bert_cc"):
            with self.subTest(program=name):
                self.check_run(build / name)

    def test_pkg_config_builds_the_c_example(self):
        need("pkg-config")
        compiler = next(filter(shutil.which, ("cc", "clang-19")), None) or skip("no C compiler")
        flags = run("pkg-config", "--cflags", "--libs", "kiln", env=self.environment).split()
        self.assertTrue(any(str(self.prefix) in str(pathlib.Path(f[2:]).resolve()) for f in flags), flags)
        program = self.folder / "bert"
        run(compiler, EXAMPLES / "bert.c", *flags, "-o", program, env=self.environment)
        self.check_run(program)

    def test_a_graph_that_is_none_is_an_error_of_the_example(self):
        build = self.folder / "examples"
        run("cmake", "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build, "--target", "bert_cc")
        done = subprocess.run(
            [build / "bert_cc", __file__], capture_output=True, text=True, env=self.environment
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("is no saved graph", done.stderr)


def safetensors(shapes: dict[str, list[int]], bias: float) -> bytes:
    """A file of BERT's last layer: zeros, and `bias` in each element of the bias."""
    header, data = {}, b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = struct.pack(f"<{count}f", *[bias if name == "bias" else 0.0] * count)
        place = [len(data), len(data) + len(values)]
        header[f"pooler.dense.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": place}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Packages(unittest.TestCase):
    def test_each_holds_its_part(self):
        need("dpkg-shlibdeps")
        with tempfile.TemporaryDirectory(prefix="kiln-cpack-") as name:
            run("cpack", "-G", "DEB", "-B", name, cwd=BUILD)
            packages = {p.name.split("_")[0]: p for p in pathlib.Path(name).glob("*.deb")}
            self.assertEqual(set(packages), {"kilnd", "libkiln", "libkiln-dev", "kiln-tools"})
            holds = {key: run("dpkg-deb", "--contents", path) for key, path in packages.items()}
            for key, path in (
                ("kilnd", " ./usr/bin/kilnd"),
                ("kilnd", " ./usr/lib/systemd/system/kilnd.service"),
                ("kilnd", " ./etc/kiln/kilnd.conf"),
                ("libkiln", "/libkiln.so.0"),
                ("libkiln-dev", "/cmake/Kiln/KilnConfig.cmake"),
                ("libkiln-dev", "/include/kiln/client.h"),
                ("libkiln-dev", "/pkgconfig/kiln.pc"),
                ("kiln-tools", " ./usr/bin/kiln"),
            ):
                self.assertIn(path, holds[key])
            unit = run("dpkg-deb", "--fsys-tarfile", packages["kilnd"], encoding="latin-1")
            self.assertIn("ExecStart=/usr/bin/kilnd --config /etc/kiln/kilnd.conf", unit)
            control = run("dpkg-deb", "--field", packages["kilnd"])
            self.assertRegex(control, r"Depends: .*libclang-cpp19")
            self.assertIn("libkiln (= ", run("dpkg-deb", "--field", packages["libkiln-dev"]))


if __name__ == "__main__":
    unittest.main()
