#!/usr/bin/env bash
# Budgets of tokens and money, with the clients that people use (openai, anthropic, google-genai,
# boto3, litellm) and a model server of the tests' own. Against the embedded store and a real Redis.
# Under 90 s.
#
# TIDEGATE is the binary to try; without it the debug build is made. Needs python3 with venv, and
# redis-server (tests/install.sh).
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

venv=$target/clients/usage
python_modules "$venv" --only-binary=:all:
for script in exact.py clients.py reserve.py keys.py ends.py faults.py many.py held.py; do
  timeout -k 5 300 "$venv/bin/python" "$script"
done
