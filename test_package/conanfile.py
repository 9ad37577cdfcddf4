# SPDX-License-Identifier: BSL-1.0
import json
import os

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class AsioRdmaTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            for program in ("consumer", "consumer_of_sources", "consumer_on_soft"):
                path = os.path.join(self.cpp.build.bindir, program)
                if os.path.exists(path):
                    self.run(path, env="conanrun")
            options = self.dependencies[self.tested_reference_str].options
            if options.with_trial and options.with_soft:
                self.test_trial()
            if options.with_info and options.with_soft:
                self.run("asio_rdma_soft_run asio_rdma-info --device soft0", env="conanrun")  # fails if it does not work
            if options.with_perf and options.with_soft:
                self.test_perf()

    def test_trial(self):
        self.run("asio_rdma_soft_run asio_rdma-trial --check messages --output trial.txt", env="conanrun")
        with open("trial.txt", encoding="utf-8") as file:
            report = json.loads(file.readlines()[-1])
        found = {check["name"]: check["result"] for check in report["checks"]}
        if found != {"open": "passed", "messages": "passed"} or report["facts"]["device"] != "soft0":
            raise ConanException(f"the report of asio_rdma-trial has {found} and {report['facts']}")
        self.output.info(f"asio_rdma-trial on {report['facts']['device']}: {found}")

    def test_perf(self):
        self.run("asio_rdma_soft_run asio_rdma-perf --what messages --mode event --sizes 64 --seconds 0.01 --json perf.json", env="conanrun")
        with open("perf.json", encoding="utf-8") as file:
            results = json.load(file)["results"]
        if len(results) != 1 or results[0]["latency"]["p50"] <= 0:
            raise ConanException(f"asio_rdma-perf has the results {results}")
        self.output.info(f"asio_rdma-perf: {results[0]['latency']['p50']} us")
