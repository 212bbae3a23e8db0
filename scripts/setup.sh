#!/usr/bin/env bash
# Make this clone able to run: Python environment, Java, Delta jars. Idempotent; seconds when there is nothing to do.
#
#   scripts/setup.sh python an environment with nothing in it, for `make wheel`
#   scripts/setup.sh java   that, and Java, for `make release`
#   scripts/setup.sh run    what `make run` and `make serve` need
#   scripts/setup.sh test   what `make test` needs: Python packages, Java and jars
#   scripts/setup.sh dev    also the Python packages of `make check` and `make docs`
#   scripts/setup.sh all    also the programs of `make test-all`: a browser, tmux, Prometheus, Tango 9, JavaScript
#   scripts/setup.sh gcc    a C compiler, for `make bench`
#   scripts/setup.sh kafka  a Kafka broker and its Spark connector, for `make bench PEERS=kafka`
#
# PYTHON=... chooses the interpreter, JAVA_HOME=... the Java.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
venv=.venv
all_extras=local,demo,dev
start=$SECONDS

say() { printf '[%4ds] %s\n' $((SECONDS - start)) "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 1; fi
}

updated=
install_package() { # the first of these packages that the system has
    local name
    if command -v apt-get >/dev/null; then
        if [ -z "$updated" ]; then
            say "apt-get update"
            as_root apt-get update -qq >/dev/null || true
            updated=1
        fi
        for name in "$@"; do
            if apt-cache show "$name" >/dev/null 2>&1; then
                say "apt-get install $name"
                as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$name" >/dev/null && return 0
            fi
        done
    elif command -v dnf >/dev/null; then
        for name in "$@"; do
            say "dnf install $name"
            as_root dnf install -y -q "$name" && return 0
        done
    fi
    return 1
}

# --- Python ----------------------------------------------------------------------------------------------------------

good_python() { "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if good_python "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    [ -x $venv/bin/python ] && $venv/bin/python -m pip --version >/dev/null 2>&1 && return
    local python
    if ! python=$(find_python); then
        install_package python3 || true
        python=$(find_python) || die "Python 3.11 or newer is needed and none was found (python3 is \
$(python3 --version 2>&1 || echo missing)). Install one, or name it: make setup PYTHON=/path/to/python3.12"
    fi
    say "environment $venv with $("$python" --version) ($python)"
    rm -rf $venv
    if ! "$python" -m venv $venv >/dev/null 2>&1; then # Debian and Ubuntu keep venv in a package of its own
        rm -rf $venv
        install_package "$(basename "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')")-venv" \
            python3-venv || die "$python cannot make environments. Install its venv module (Debian: apt-get install \
python3-venv) and try again."
        "$python" -m venv $venv
    fi
}

fingerprint() { # of everything that the installation depends on
    { cat pyproject.toml "$0"; $venv/bin/python --version; echo "$PWD" "$1"; } | cksum | tr -d ' '
}

stamped() { [ "$(cat "$venv/.$1" 2>/dev/null)" = "$2" ]; }

pip_install() { # extras, unless they or more are there
    local want
    stamped "installed-$all_extras" "$(fingerprint "$all_extras")" && return
    want=$(fingerprint "$1")
    stamped "installed-$1" "$want" && return
    say "pip install mama-spark[$1] (500 MB the first time, which take minutes)"
    $venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
    echo "$want" >"$venv/.installed-$1"
}

# --- Spark -----------------------------------------------------------------------------------------------------------

link_spark() { # an own SPARK_HOME without pyspark.zip, which every Python worker would compile anew when it starts
    [ -x $venv/spark/bin/spark-submit ] && [ -e $venv/spark/python/pyspark ] && return
    local home part
    home=$($venv/bin/python -c 'import os, pyspark, sys; print(os.path.relpath(pyspark.__path__[0], sys.prefix))')
    mkdir -p $venv/spark/python
    for part in bin jars sbin; do ln -sfn "../$home/$part" $venv/spark/$part; done
    ln -sfn "../../$home/python/pyspark" $venv/spark/python/pyspark # where the shell begins
}

# --- Java ------------------------------------------------------------------------------------------------------------

good_java() { # Spark 4.2 runs on 17 and 21; trimmed runtimes lack a module that it asks for
    [ -x "$1/bin/java" ] && "$1/bin/java" -version 2>&1 | grep -Eq 'version "(17|21)[."]' &&
        "$1/bin/java" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector'
}

find_java() {
    local home java
    java=$(command -v java || true)
    [ -z "$java" ] || java=$(dirname "$(dirname "$(readlink -f "$java")")")
    for home in "${JAVA_HOME:-}" "$java" /usr/lib/jvm/*17* /usr/lib/jvm/*21* \
        /opt/homebrew/opt/openjdk@{17,21} /usr/local/opt/openjdk@{17,21}; do
        if [ -n "$home" ] && good_java "$home"; then
            echo "$home"
            return 0
        fi
    done
    return 1
}

find_or_install_java() {
    local home
    home=$(cat $venv/.java_home 2>/dev/null || true)
    if [ -n "$home" ] && [ -x "$home/bin/java" ] && [ -z "${JAVA_HOME:-}" -o "${JAVA_HOME:-}" = "$home" ]; then return; fi
    if ! home=$(find_java); then
        say "no Java 17 or 21 found"
        install_package openjdk-17-jre-headless openjdk-21-jre-headless java-21-openjdk-headless || true
        home=$(find_java) || die "Spark needs Java 17 or 21 (a full JRE or JDK) and it could not be installed here. \
Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; \
macOS: brew install openjdk@17) or set JAVA_HOME, then run make setup again."
    fi
    say "Java: $home"
    echo "$home" >$venv/.java_home
}

# --- Delta -----------------------------------------------------------------------------------------------------------

resolve_jars() { # the stamp holds the pins and the jar files, so that a cleared cache is noticed
    local pins
    pins=$(grep -E '"(pyspark|delta-spark)==' pyproject.toml | tr -d ' \n')
    if [ "$(head -n 1 $venv/.jars 2>/dev/null)" = "$pins" ]; then
        local jar all=yes
        while read -r jar; do [ -f "$jar" ] || all=; done < <(tail -n +2 $venv/.jars)
        [ -z "$all" ] || return 0
    fi
    say "resolving the Delta jars with a first Spark session (about half a minute)"
    local log=$venv/.jars.log
    if ! scripts/in-env python scripts/resolve_jars.py >$venv/.jars.new 2>$log; then
        tail -n 30 $log >&2
        die "the Delta jars could not be resolved from Maven Central (full output: $log)"
    fi
    { echo "$pins" && cat $venv/.jars.new; } >$venv/.jars
    rm -f $venv/.jars.new $log
}

archive_classes() { # what a JVM of the tests maps, in place of reading and verifying 20,000 classes when it starts
    local want
    want=$({ head -n 1 $venv/.jars; cat $venv/.java_home scripts/archive_spark_classes.py; echo "$PWD"; } | cksum | tr -d ' ')
    [ -e $venv/spark.jsa ] && stamped classes "$want" && return
    say "archiving the classes of Spark for the tests (about a minute)"
    rm -f $venv/spark.jsa
    if scripts/in-env python scripts/archive_spark_classes.py "$PWD/$venv/spark.jsa" >$venv/.classes.log 2>&1; then
        echo "$want" >$venv/.classes
        rm -f $venv/.classes.log
    else
        rm -f $venv/spark.jsa
        say "the archive could not be made, so tests take longer (output: $venv/.classes.log)"
    fi
}

# --- JavaScript -------------------------------------------------------------------------------------------------------

arrow_js=apache-arrow@21.2.0

install_arrow_js() { # the examples of docs/how-to/read-packs-without-spark.md; node itself comes with the Python packages
    [ "$(cat $venv/js/.stamp 2>/dev/null)" = "$arrow_js" ] && return
    say "npm install $arrow_js"
    mkdir -p $venv/js
    # node trusts a list of its own: here also those whom the system trusts
    local authorities=/etc/ssl/certs/ca-certificates.crt
    if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -r $authorities ]; then export NODE_EXTRA_CA_CERTS=$authorities; fi
    PATH="$PWD/$venv/bin:$PATH" npm install --silent --no-audit --no-fund --prefix $venv/js $arrow_js ||
        die "$arrow_js could not be installed from the npm registry; the tests of docs/how-to/read-packs-without-spark.md need it"
    echo "$arrow_js" >$venv/js/.stamp
}

# --- Tango 9 ----------------------------------------------------------------------------------------------------------

fetch_tango9() { # tests run PyTango 9.3.6 and a database on MariaDB beside PyTango 10, from Debian 12
    if command -v apt-get >/dev/null && [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        install_package debian-archive-keyring || true
        install_package debootstrap || true # names a mirror of Debian
    fi
    scripts/in-env python scripts/fetch_tango9.py || say "Tango 9 could not be fetched: the tests that run it will fail"
}

# --- Browser ----------------------------------------------------------------------------------------------------------

install_chromium() { # for the tests of the report page
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v $name >/dev/null; then return; fi
    done
    install_package chromium chromium-browser ||
        die "the tests of the report page need Chromium: install it (Debian: apt-get install chromium) and try again"
}

install_tmux() { # the terminal of a test of mama top
    command -v tmux >/dev/null || install_package tmux ||
        die "a test of mama top needs tmux: install it (Debian: apt-get install tmux) and try again"
}

fetch_prometheus() { # unpacked and not installed: the package would start a server on all interfaces
    if command -v prometheus >/dev/null || [ -x $venv/prometheus/usr/bin/prometheus ]; then return; fi
    say "apt-get download prometheus"
    rm -rf $venv/prometheus && mkdir -p $venv/prometheus
    (cd $venv/prometheus && { apt-get download -qq prometheus || { as_root apt-get update -qq && apt-get download -qq prometheus; }; } &&
        dpkg -x prometheus_*.deb . && rm prometheus_*.deb) >/dev/null 2>&1 && [ -x $venv/prometheus/usr/bin/prometheus ] ||
        die "a test of metrics needs prometheus and apt-get could not download it: put it on the PATH and try again"
    ln -sf ../prometheus/usr/bin/prometheus $venv/bin/prometheus
}

case $what in
gcc)
    command -v gcc >/dev/null || install_package gcc libc6-dev ||
        die "the ceiling program of the benchmark is written in C: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)"
    echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 || install_package libc6-dev
    exit
    ;;
kafka)
    scripts/in-env python scripts/fetch_kafka.py
    exit
    ;;
python | java)
    make_venv
    [ $what = python ] || find_or_install_java
    exit
    ;;
run) extras=local,demo,malamute,report,cli,top ;;
test) extras=local,demo,test ;;
dev | all) extras=$all_extras ;;
*) die "unknown: $what (python, java, run, test, dev, all, gcc or kafka)" ;;
esac

make_venv
pip_install $extras
link_spark
find_or_install_java
resolve_jars
if [ $what = all ]; then
    archive_classes
    install_arrow_js
    fetch_tango9
    install_chromium
    install_tmux
    fetch_prometheus
fi
say "ready"
