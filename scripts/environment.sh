# Sourced by quickstart.sh and test.sh. `prepare_python [EXTRA]` leaves in PY an interpreter that
# has everything the project (and EXTRA of pyproject.toml) needs:
#   1. the one ABCROWN_PYTHON names, as it is, if nothing is missing there;
#   2. else .venv, made from ABCROWN_PYTHON or from the first Python >= 3.10 on the PATH.
# Nothing is ever installed outside .venv. A failure is one sentence on stderr and exit code 1.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
STATE="$VENV/abcrown-state" # "installing PID" while at work, then the key of what was installed
LOG="$VENV/install.log"
AUTO_LIRPA="auto_LiRPA==0.3"

die() {
  echo "error: $*" >&2
  exit 1
}

python_version() { # PROGRAM -> "3.11.7", or nothing if it does not run
  "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true
}

new_enough() { # "3.11.7"
  [[ "$1" =~ ^([0-9]+)\.([0-9]+)\. ]] || return 1
  ((BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 10)))
}

named_interpreter() { # path of the program that ABCROWN_PYTHON names
  local program version
  program="$(command -v "$ABCROWN_PYTHON")" ||
    die "ABCROWN_PYTHON names '$ABCROWN_PYTHON', which is no program; name a Python 3.10 or newer, or unset it."
  version="$(python_version "$program")"
  [[ -n "$version" ]] || die "ABCROWN_PYTHON names '$ABCROWN_PYTHON', which does not run as a Python."
  new_enough "$version" ||
    die "Python 3.10 or newer is needed, and ABCROWN_PYTHON names '$ABCROWN_PYTHON', which is $version."
  echo "$program"
}

interpreter_on_path() {
  local candidate version old=""
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    command -v "$candidate" >/dev/null || continue
    version="$(python_version "$candidate")"
    if new_enough "$version"; then
      command -v "$candidate"
      return
    fi
    [[ -z "$version" ]] || old="${old:-$candidate is $version}"
  done
  die "Python 3.10 or newer is needed and ${old:-none was found on the PATH}; install one, or name one with ABCROWN_PYTHON=/path/to/python3."
}

install_key() { # changes when .venv has to be brought up to date
  local requirements
  requirements="$(awk '/^\[/ {on = ($0 ~ /^\[project/)} on' "$ROOT/pyproject.toml" | cksum)"
  echo "$AUTO_LIRPA $requirements"
}

check_disk() { # the CUDA build of PyTorch for Linux is the bulk of it
  local needed=7 free
  [[ "$(uname -s)" == Linux ]] || needed=2
  free="$(df -Pk "$ROOT" | awk 'NR == 2 {print int($4 / 1048576)}')"
  ((free >= needed)) ||
    die "$needed GB of disk space are needed to install into $VENV and $free GB are free."
}

explain_failure() { # WHAT: why pip failed, from the end of its log
  local end no_network="NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError"
  no_network+="|ProxyError|Max retries exceeded|Connection (refused|reset)|Network is unreachable"
  end="$(tail -n 40 "$LOG")"
  if grep -q "No space left on device" <<<"$end"; then
    die "the disk filled up while installing $1; free some space and run this again (log: $LOG)."
  elif grep -qE "$no_network" <<<"$end"; then
    die "no network: the package index could not be reached to install $1 (log: $LOG)."
  fi
  die "installing $1 failed: $(grep -i "error" <<<"$end" | tail -n 1 | cut -c1-200) (log: $LOG)."
}

pip_install() { # WHAT-FOR-PEOPLE PIP-ARGUMENTS...
  local what="$1"
  shift
  echo "  installing $what"
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$VENV/bin/python" -m pip install "$@" \
    >>"$LOG" 2>&1 || explain_failure "$what"
}

create_venv() { # BASE
  rm -rf "$VENV"
  mkdir "$VENV" && echo "installing $$" >"$STATE" || die "$VENV cannot be written."
  if "$1" -c 'import ensurepip, venv' 2>/dev/null; then
    "$1" -m venv "$VENV" >>"$LOG" 2>&1 || die "$1 could not make a virtual environment (log: $LOG)."
    return
  fi
  # Debian and Ubuntu ship Python without ensurepip: let the base's pip install pip into .venv.
  local pip_folder
  pip_folder="$("$1" -c 'import os, pip; print(os.path.dirname(pip.__file__))' 2>/dev/null)" ||
    die "$1 has neither ensurepip nor pip; install python3-venv or python3-pip from your system's packages."
  "$1" -m venv --without-pip "$VENV" >>"$LOG" 2>&1 ||
    die "$1 could not make a virtual environment (log: $LOG)."
  "$VENV/bin/python" "$pip_folder" install --ignore-installed pip >>"$LOG" 2>&1 || explain_failure pip
}

check_ownership() { # never touch a .venv that someone else made, or that another run is making
  [[ -e "$VENV" ]] || return 0
  [[ -f "$STATE" ]] ||
    die "$VENV exists and was not made by this script; move it away, or use it as it is with ABCROWN_PYTHON=.venv/bin/python."
  local word pid
  read -r word pid _ <"$STATE" || true
  if [[ "$word" == installing ]] && kill -0 "$pid" 2>/dev/null; then
    die "process $pid is installing into $VENV; wait for it to end (or, if that is another program, delete $VENV), then run this again."
  fi
}

usable_venv() { # BASE: a finished .venv with BASE's version of Python, if perhaps out of date
  # An interrupted install leaves half-written packages behind that pip takes for whole ones.
  [[ -x "$VENV/bin/python" && -f "$STATE" && "$(<"$STATE")" != installing* ]] &&
    [[ "$(python_version "$1")" == "$(python_version "$VENV/bin/python")" ]]
}

make_venv() { # BASE
  local base="$1" key
  key="$(install_key)"
  check_ownership
  if ! usable_venv "$base"; then
    check_disk
    echo "Making .venv with Python $(python_version "$base"): once, some minutes, 6 GB (log: .venv/install.log)"
    create_venv "$base"
  fi
  echo "installing $$" >"$STATE"
  pip_install "PyTorch" torch torchvision
  pip_install "$AUTO_LIRPA" --no-deps "$AUTO_LIRPA"
  pip_install "the other packages" -e "$ROOT[test]"
  echo "$key" >"$STATE"
}

prepare_python() { # [EXTRA]
  local base="" lacking
  PY="$VENV/bin/python"
  if [[ -n "${ABCROWN_PYTHON:-}" ]]; then
    base="$(named_interpreter)"
    if lacking="$("$base" "$ROOT/scripts/missing_packages.py" ${1:+"$1"} --also "$AUTO_LIRPA")"; then
      PY="$base"
      return
    fi
    lacking="$(tr '\n' ' ' <<<"$lacking")"
    [[ ! "$base" -ef "$PY" || "$base" != *.venv/* ]] ||
      die "ABCROWN_PYTHON names .venv itself, which lacks ${lacking% }; unset it to bring .venv up to date."
  elif [[ -x "$PY" && -f "$STATE" && "$(<"$STATE")" == "$(install_key)" ]]; then
    return
  else
    base="$(interpreter_on_path)"
  fi
  if usable_venv "$base" && [[ "$(<"$STATE")" == "$(install_key)" ]]; then return; fi
  [[ -z "${lacking:-}" ]] || echo "$ABCROWN_PYTHON lacks ${lacking% }: making .venv from it."
  make_venv "$base"
}
