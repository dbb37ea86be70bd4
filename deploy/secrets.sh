#!/bin/sh
# Writes the secrets of compose.yaml, unless they exist. The containers' users read them through a mount, so the files
# are readable for all, in a directory that only you can enter.
set -eu
cd "$(dirname "$0")"
if [ -e secrets ]; then
    echo "deploy/secrets exists; nothing was written" >&2
    exit 1
fi
mkdir -m 0700 secrets
umask 0222
password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
printf '%s' "$password" >secrets/postgres_password
printf 'postgresql://rota:%s@postgres/rota' "$password" >secrets/database_url
