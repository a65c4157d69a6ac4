#!/bin/bash
# build/replay on small traces, good and bad. Closes with `N passed, N failed`.
set -u
replay=${BUILD:-build}/replay
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
rmm=Thread,Time,Action,Pointer,Size,Stream

text() { # NAME LINE...: makes a trace
    printf '%s\n' "${@:2}" > "$dir/$1"
}

# says STATUS PATTERN ARGUMENT...: the tool ends so, and a line of what it prints matches.
says() {
    local said status
    said=$("$replay" "${@:3}" 2>&1)
    status=$?
    if ((status == $1)) && grep -Eq -- "$2" <<< "$said"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED replay ${*:3}"
        echo "  wanted status $1 and /$2/, got status $status and:"
        head -n 5 <<< "$said"
    fi
}

# refuses REASON LINE...: a trace of those lines ends with status 2, the file and the reason.
refuses() {
    text bad "${@:2}"
    says 2 "^$dir/bad:[0-9]+: .*$1" "$dir/bad"
}

# ---- what is wrong with a trace, and where ----
refuses "neither" "x 1 2 3"
refuses "neither" "a 1 512"
refuses "bad id" "a -1 512 0"
refuses "bad id" "a 99999999999999999999999 512 0"
refuses "bad size" "a 1 5e3 0"
refuses "bad stream" "a 1 512 s"
refuses "0 bytes" "a 1 0 0"
refuses "absurd size" "a 1 9999999999999999 0"
refuses "block 9: used, but not live" "u 9 0"
refuses "block 7: freed, but never allocated" "a 1 512 0" "f 7 0"
refuses "block 1: freed twice" "a 1 512 0" "f 1 0" "f 1 0"
refuses "block 1: allocated twice" "a 1 512 0" "a 1 512 0"
refuses "unknown action 'resize'" $rmm "1,00:00:00,resize,0x10,512,0"
refuses "six fields" $rmm "1,2,allocate,0x10,512"
refuses "bad pointer" $rmm "1,2,allocate,ptr,512,0"
refuses "freed twice" $rmm "1,2,allocate,0x10,8,0" "1,2,free,0x10,8,0" "1,2,free,0x10,8,0"
printf 'a 1 512 0\0\n' > "$dir/bad"
says 2 "^$dir/bad:1: holds a zero byte" "$dir/bad"

# ---- files that cannot be read ----
says 2 "^$dir/missing: No such file" "$dir/missing"
text empty "# nothing"
says 2 "^$dir/empty: no events" "$dir/empty"
for i in {1..2000}; do echo "a $i $((i * 512)) 0"; done > "$dir/long"
gzip -c "$dir/long" > "$dir/long.gz"
head -c 3000 "$dir/long.gz" > "$dir/cut.gz"
says 2 "^$dir/cut.gz:" "$dir/cut.gz"

# ---- the command line ----
text good "a 1 4194304 0" "a 2 512 3" "f 1 0" "a 1 1000 7" "f 1 0"
says 2 "names no trace"
says 2 "unknown option" --wrong "$dir/good"
says 2 "takes a number from 1 to 1024" --streams 0 "$dir/good"
says 2 "source takes" --source disk "$dir/good"
says 2 "draws one trace" --svg "$dir/x.svg" "$dir/good" "$dir/good"
says 2 "E_ARGUMENT" --limit 12GB! "$dir/good"
says 0 "^usage: replay" --help

# ---- what comes out: events, peak of live megabytes, and at the end the failures ----
row() { # TRACE EVENTS MEGABYTES ARGUMENT...: all went well
    says 0 "^$1 +$2 +$3 .* 0$" "${@:4}"
}
row good 5 4.195 "$dir/good"
text one "a 1 8388608 0"
row one 1 '8.389 +8.389 +1.0000 +1.0000' --min-limit "$dir/one"
says 1 'E_OUT_OF_MEMORY' --limit 2MiB "$dir/one"
says 1 '^one .* 3$' --limit 2MiB "$dir/one"
row long 2000 1024.512 --streams 3 "$dir/long"
for source in mapped device managed pinned bypass; do
    row good 5 4.195 --source $source "$dir/good"
done
row long.gz 2000 1024.512 --svg "$dir/map.svg" "$dir/long.gz"
says 1 '/dev/full: No space' --svg /dev/full "$dir/long"
text uses "# of all kinds" "a 1 4194304 0" "a 2 1000 7" "u 2 0" "o 99999999999999 7" "f 1 0" "f 2 7"
row uses 6 4.195 "$dir/uses"
for i in {1..64}; do printf 'a %d 8388608 %d\nf %d %d\n' $i $((i % 8 + 1)) $i $((i % 8 + 1)); done \
    > "$dir/hand"
row hand 128 '8.389 .* 1.0000' --behind --min-limit "$dir/hand"
text log $rmm "1,10:00:00.000001,allocate,0x7f0010,4096,0x0" "1,t,free,0x7f0010,4096,0x0" \
    "1,t,allocate failure,(nil),99999999,0x1" "1,t,allocate,0x7f0010,8192,0xab" \
    "1,t,allocate,0x7f8000,0,0" "1,t,deallocate,0x7f8000,0,0"
row log 3 0.008 "$dir/log"

# ---- RMM's streams: memory goes from one to another only behind a fence, which is CUDA calls ----
turns() { # THREAD STREAM THREAD STREAM: a block of all that the limit allows, one after the other
    text log $rmm "$1,t,allocate,0x10,2097152,$2" "$1,t,free,0x10,2097152,$2" \
        "$3,t,allocate,0x10,2097152,$4" "$3,t,free,0x10,2097152,$4"
}
free_of_calls='^log .* 0 +0$'
fenced='^log .* [1-9][0-9]* +0$'
turns 1 0xab 1 0xab && says 0 "$free_of_calls" --limit 2MiB "$dir/log"
turns 1 0xab 1 0xac && says 0 "$fenced" --limit 2MiB "$dir/log"
turns 1 0 2 0x1 && says 0 "$free_of_calls" --limit 2MiB "$dir/log"
turns 1 0x2 2 0x2 && says 0 "$fenced" --limit 2MiB "$dir/log"
row rmm.csv 182 93.208 tests/traces/rmm.csv

echo "$passed passed, $failed failed"
((failed == 0))
