#!/usr/bin/env bash
# Builds the wheel, installs it in a new environment, as a user does, and runs the tests:
#
#   test.sh            all tests, and a second run with a wheel that has debug assertions
#   test.sh quick      all tests with the wheel that has debug assertions
#   test.sh wheel PROFILE
#                      builds only the wheel: target/python/PROFILE/*.whl
#   test.sh bench      compares reads by Python with reads by the library
#   test.sh wheels     builds the wheels for x86-64 and AArch64
#
# IRONMAP_SEED and IRONMAP_ROUNDS set the seed and the length of the random tests.
source "$(dirname "$0")/../../tests/lib.sh"
crate=crates/ironmap-python
work=$target/python
venv=$work/venv
minor=$(python3 -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null) || minor=False
[ "$minor" = True ] || { skip "Python package: needs Python 3.11 or later" && exit; }

rm -rf "$venv"
python3 -m venv "$venv" || { skip "Python package: python3 cannot make an environment" && exit; }
export PATH=$venv/bin:$PATH CARGO_TARGET_DIR=$target
pip install --quiet 'maturin>=1.9,<2' pytest || { skip "Python package: pip cannot install maturin and pytest" && exit; }

# wheel PROFILE [OPTION...]: builds the wheel, and sets $wheel to its path.
wheel() {
    rm -rf "${work:?}/$1"
    timed "python: wheel ($1)" maturin build --quiet --locked -m $crate/Cargo.toml --profile "$1" --out "$work/$1" "${@:2}"
    wheel=$(echo "$work/$1"/*.whl)
}

# run PROFILE TEST...: runs tests with the wheel of a profile.
run() {
    wheel "$1"
    pip install --quiet --force-reinstall --no-deps "$wheel"
    timed "python: tests ($1)" pytest -p no:cacheprovider --rootdir $crate "${@:2}"
}

# Tests skip, by name, what these packages would test.
packages() {
    local package
    for package in numpy fsspec pandas pyarrow duckdb safetensors mypy; do
        pip install --quiet --only-binary :all: $package || skip "Python package, tests with $package: pip cannot install it"
    done
}

case ${1:-all} in
    all)
        packages
        run release $crate/tests
        # The scripts and pages do not depend on the build.
        run checked $crate/tests --ignore $crate/tests/test_scripts.py --ignore $crate/tests/test_docs.py
        ;;
    quick)
        packages
        run checked $crate/tests
        ;;
    bench)
        wheel release
        pip install --quiet --force-reinstall --no-deps "$wheel"
        cargo build --quiet --locked --release --manifest-path $crate/Cargo.toml --example native
        python $crate/bench.py "$target/release/examples/native" "${@:2}"
        ;;
    wheel) wheel "$2" ;;
    wheels)
        pip install --quiet ziglang || { skip "wheels: pip cannot install ziglang" && exit; }
        for machine in x86_64 aarch64; do
            or_install "Rust's library for $machine" "test -d \$(rustc --print target-libdir --target $machine-unknown-linux-gnu)" \
                "rustup target add $machine-unknown-linux-gnu" || { skip "wheel for $machine: its standard library cannot be installed" && continue; }
            wheel release --zig --compatibility manylinux2014 --target "$machine-unknown-linux-gnu"
            cp "$wheel" "$work"
            echo "$work/$(basename "$wheel")"
        done
        ;;
    *) die "there is no part $1" ;;
esac
