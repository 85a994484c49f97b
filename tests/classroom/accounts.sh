# Accounts that are seen in this mount namespace only: unshare --mount bash accounts.sh HOLD GROUP "NAMES" "PATHS" COMMAND ...
# PATHS is what learners must be able to read; where a folder on the way is closed, an open one stands in its place here.
set -euo pipefail
hold=$1 group=$2 names=$3 paths=$4
shift 4
mkdir -p "$hold"
mount --make-rprivate /

number=0
declare -A held
for path in $paths; do
    closed=
    for ((folder = 1; ; folder++)); do
        part=$(cut -d/ -f1-$((folder + 1)) <<<"$path")
        [[ $(stat -c %A "$part") == *[xt] ]] || { closed=$part && break; }
        [[ $part != "$path" ]] || break
    done
    [[ $closed ]] || continue
    number=$((number + 1))
    mkdir "$hold/$number"
    mount --bind "$path" "$hold/$number"
    held[$number]="$closed $path"
done
for each in "${held[@]}"; do
    read -r closed _ <<<"$each"
    mountpoint -q "$closed" || mount -t tmpfs -o mode=755 none "$closed"
done
for number in "${!held[@]}"; do
    read -r _ path <<<"${held[$number]}"
    mkdir -p "$path"
    mount --bind "$hold/$number" "$path"
done

mkdir "$hold/homes"
for file in passwd shadow group; do
    cp -a "/etc/$file" "$hold/"
    mount --bind "$hold/$file" "/etc/$file"
done
id=5000
echo "$group:x:$id:${names// /,}" >>/etc/group
for name in $names; do
    id=$((id + 1))
    echo "$name:x:$id:$id::$hold/homes/$name:/bin/sh" >>/etc/passwd
    echo "$name:x:$id:" >>/etc/group
    echo "$name:$(perl -e 'print crypt("secret-$ARGV[0]", q($6$accounts))' "$name"):20000:0:99999:7:::" >>/etc/shadow
    mkdir -m 700 "$hold/homes/$name"
    chown "$id:$id" "$hold/homes/$name"
done
exec "$@"
