#!/usr/bin/env bash
# Builds, as archives that a portable build can link, libraries of which Debian has no such archive:
# prometheus-cpp has none, libcurl's asks for Kerberos and LDAP, which have none, and those of Abseil,
# protobuf and RE2 are for programs only and not for libkiln.so. From Debian's sources of what is
# installed here, with its patches; libcurl for http and https alone, as kilnd speaks with a collector.
#   deploy/portable/static-libraries.sh PREFIX        what is there already stays
set -euo pipefail
[ $# -eq 1 ] || { sed -n 6p "$0" | cut -c3- >&2; exit 2; }
mkdir -p "$1"
prefix="$(cd "$1" && pwd)"
work="$prefix/build"

# This machine's apt sources of Debian, asked for source packages, with lists of their own.
apt=()
prepare_apt() {
  [ ${#apt[@]} -eq 0 ] || return 0
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
  # Until its first apt-get update a machine does not know whose a source is, and the field stays.
  # shellcheck disable=SC2016  # the fields are apt's
  apt-get indextargets --format '$(ORIGIN)|deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Identifier: Packages' | sed -nE 's/^(Debian|\$\(ORIGIN\))?\|//p' | sort -u >"$work/apt/sources.list"
  apt=(apt-get -q -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=-
       -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache")
  "${apt[@]}" update >"$work/apt.log" 2>&1 || {
    tail -n 5 "$work/apt.log" >&2
    echo "error: the lists of Debian's sources cannot be read: is there a network?" >&2
    exit 1
  }
}

# build PACKAGE ARCHIVE COMMAND...      the source of an installed development package, by what is run there
build() {
  local source archive="$2" log
  # shellcheck disable=SC2016  # the fields are dpkg's
  source="$(dpkg-query -W -f '${source:Package}=${source:Version}' "$1")"
  shift 2
  [ ! -e "$prefix/lib/$archive" ] || return 0
  echo "portable: $source"
  prepare_apt
  local name="${source%%=*}"
  log="$work/$name.log"
  rm -rf "${work:?}/$name"
  mkdir -p "$work/$name"
  # In the background, since the left side of || would go on after an error.
  (
    cd "$work/$name"
    "${apt[@]}" source "$source"
    cd "$(find . -maxdepth 1 -mindepth 1 -type d)"
    "$@"
    install -D -m 644 debian/copyright "$prefix/licences/$name"
  ) >"$log" 2>&1 &
  wait $! || {
    tail -n 20 "$log" >&2
    echo "error: $source does not build; all of it is in $log" >&2
    exit 1
  }
}

# As Debian builds them: Clang would give some names otherwise than GCC does, and NDEBUG would change what
# headers and library have to agree on.
flags="-O2 -ffunction-sections"
with_cmake() {
  cmake -G Ninja -B "$work/$name/build" -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_BUILD_TYPE=None "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags" \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_LIBDIR=lib \
    "-DCMAKE_INSTALL_PREFIX=$prefix" "$@"
  cmake --build "$work/$name/build" --parallel "$(nproc)" --target install
}
# The first argument is the archive.
with_make() {
  make -j "$(nproc)" CXX=g++ "CXXFLAGS=$flags -fPIC" "$@"
  install -D -m 644 -t "$prefix/lib" "$1"
}

build libabsl-dev libabsl_base.a with_cmake -DCMAKE_CXX_STANDARD=17

build libprotobuf-dev libprotobuf.a with_cmake \
  -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF

build libre2-dev libre2.a with_make obj/libre2.a REBUILD_TABLES=1

build prometheus-cpp-dev libprometheus-cpp-core.a with_cmake \
  -DENABLE_PUSH=OFF -DENABLE_PULL=OFF -DENABLE_TESTING=OFF -DUSE_THIRDPARTY_LIBRARIES=OFF

# Certificates are where OpenSSL looks for them (SSL_CERT_FILE), not where this machine has them.
build libcurl4-openssl-dev libcurl.a with_cmake \
  -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON \
  -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DCURL_CA_FALLBACK=ON \
  -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF -DCURL_ZLIB=OFF \
  -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DENABLE_UNIX_SOCKETS=OFF -DCURL_DISABLE_COOKIES=ON \
  -DCURL_DISABLE_NETRC=ON -DCURL_DISABLE_ALTSVC=ON -DCURL_DISABLE_HSTS=ON
