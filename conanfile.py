# SPDX-License-Identifier: BSL-1.0
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir
from conan.tools.gnu import PkgConfigDeps

required_conan_version = ">=2.0"


class AsioRdma(ConanFile):
    name = "asio_rdma"
    description = "RDMA for Boost.Asio"
    license = "BSL-1.0"
    topics = ("rdma", "asio", "infiniband", "roce", "iwarp", "network")

    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    # with_soft: the software device, for tests (soft/README.md). with_trial: the program asio_rdma-trial (docs/devices.md).
    # with_info: the program asio_rdma-info (info/README.md). with_perf: the program asio_rdma-perf (perf/README.md).
    options = {"shared": [True, False], "fPIC": [True, False], "with_soft": [True, False], "with_trial": [True, False],
               "with_info": [True, False], "with_perf": [True, False]}
    default_options = {
        "shared": False,
        "fPIC": True,
        "with_soft": False,
        "with_trial": False,
        "with_info": False,
        "with_perf": False,
        "boost/*:header_only": True,
        "rdma-core/*:build_librdmacm": True,
    }
    implements = ["auto_shared_fpic"]
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "soft/CMakeLists.txt", "soft/run", \
        "soft/include/*", "soft/src/*", "trial/*", "info/*", "perf/*", "tools/latency.bt"

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include", "asio_rdma", "version.hpp"))
        self.version = ".".join(re.findall(r"#define ASIO_RDMA_VERSION_[A-Z]+ (\d+)", header))

    def export(self):
        copy(self, "include/asio_rdma/version.hpp", self.recipe_folder, self.export_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("boost/[>=1.81]", transitive_headers=True)
        self.requires("rdma-core/[>=33]", transitive_headers=True)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("RDMA's user-space verbs are Linux only")
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS", "PRECOMPILE"):
            toolchain.cache_variables[f"ASIO_RDMA_{part}"] = False
        toolchain.cache_variables["ASIO_RDMA_SOFT"] = bool(self.options.with_soft)
        toolchain.cache_variables["ASIO_RDMA_TRIAL"] = bool(self.options.with_trial)
        toolchain.cache_variables["ASIO_RDMA_INFO"] = bool(self.options.with_info)
        toolchain.cache_variables["ASIO_RDMA_PERF"] = bool(self.options.with_perf)
        toolchain.cache_variables["CMAKE_UNITY_BUILD"] = True  # a quarter of the time
        toolchain.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        # Conan writes these files for its consumers, with its own packages in them.
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))
        rmdir(self, os.path.join(self.package_folder, "share", "doc")) # the licence is in licenses

    def package_info(self):
        self.cpp_info.set_property("cmake_target_name", "asio_rdma::all")
        self.cpp_info.set_property("pkg_config_name", "asio_rdma-all")
        library = self.cpp_info.components["library"]
        library.set_property("cmake_target_name", "asio_rdma::asio_rdma")
        library.set_property("pkg_config_name", "asio_rdma")
        parts = {"asio_rdma": library}
        # For a program that compiles the library's sources itself (asio_rdma/src.hpp).
        headers = self.cpp_info.components["headers"]
        headers.set_property("cmake_target_name", "asio_rdma::headers")
        headers.set_property("pkg_config_name", "asio_rdma-headers")
        parts[None] = headers
        if self.options.with_soft:
            # Its functions stand before those of rdma-core, so it comes first.
            parts["asio_rdma_soft"] = self.cpp_info.components["soft"]
            parts["asio_rdma_soft"].set_property("cmake_target_name", "asio_rdma::soft")
            parts["asio_rdma_soft"].exelinkflags = ["-Wl,--no-as-needed"]
        # A package that a profile takes from the system ([platform_requires]) is not among the
        # dependencies, so it cannot be named here.
        packages = {dependency.ref.name for _, dependency in self.dependencies.host.items()}
        for name, part in parts.items():
            part.libs = [name] if name else []
            part.system_libs = ["pthread"]
            if "boost" in packages:
                part.requires.append("boost::headers")
            if "rdma-core" in packages:
                part.requires += ["rdma-core::librdmacm", "rdma-core::libibverbs"]
            else:
                part.system_libs = ["rdmacm", "ibverbs", "pthread"]
