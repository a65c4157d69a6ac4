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
    said=$(PATH=${replay_path:-$PATH} "$replay" "${@:3}" 2>&1)
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
refuses "neither" "a 1 512 0 256 0"
refuses "neither" "t 1 2"
refuses "neither" "z 1"
refuses "bad alignment" "a 1 512 0 x"
refuses "no power of two" "a 1 512 0 3"
refuses "no power of two" "o 512 0 2199023255552"
refuses "bad size" "l -1"
refuses "block 9: used, but not live" "u 9 0"
refuses "neither" "f 1 0 0"
refuses "neither" "a"
refuses "bad id" "a -1 512 0"
refuses "bad id" "a 0x1 512 0"
refuses "bad id" "a 99999999999999999999999 512 0"
refuses "bad size" "a 1 5e3 0"
refuses "bad size" "a 1 -512 0"
refuses "bad stream" "a 1 512 s"
refuses "0 bytes" "a 1 0 0"
refuses "absurd size" "a 1 9999999999999999 0"
refuses "block 7: freed, but never allocated" "a 1 512 0" "f 7 0"
refuses "block 1: freed twice" "a 1 512 0" "f 1 0" "f 1 0"
refuses "block 1: allocated twice" "a 1 512 0" "a 1 512 0"
text bad "# a comment" "" "a 1 512 0" "junk"
says 2 "^$dir/bad:4: " "$dir/bad"
text bad $rmm "1,00:00:00,allocate,0x10,512,0" "1,00:00:00,resize,0x10,512,0"
says 2 "^$dir/bad:3: unknown action 'resize'" "$dir/bad"
refuses "six fields" $rmm "1,2,allocate,0x10,512"
refuses "bad thread" $rmm "main,2,allocate,0x10,512,0"
refuses "bad pointer" $rmm "1,2,allocate,ptr,512,0"
refuses "bad size" $rmm "1,2,allocate,0x10,,0"
refuses "bad stream" $rmm "1,2,allocate,0x10,512,"
refuses "block 0x10: freed twice" $rmm "1,2,allocate,0x10,8,0" "1,2,free,0x10,8,0" \
    "1,2,free,0x10,8,0"
printf 'a 1 512 0\0\n' > "$dir/bad"
says 2 "^$dir/bad:1: holds a zero byte" "$dir/bad"

# ---- files that cannot be read ----
says 2 "^$dir/missing: No such file" "$dir/missing"
says 2 "^$dir: Is a directory" "$dir"
text empty "# nothing"
says 2 "^$dir/empty: no events" "$dir/empty"
text plain.gz "a 1 512 0"
says 2 "^$dir/plain.gz: named .gz" "$dir/plain.gz"
for i in {1..2000}; do echo "a $i $((i * 512)) 0"; done > "$dir/long"
gzip -c "$dir/long" > "$dir/long.gz"
head -c 3000 "$dir/long.gz" > "$dir/cut.gz"
says 2 "^$dir/cut.gz: gzip cannot unpack it" "$dir/cut.gz"
replay_path=/nowhere says 2 "^$dir/long.gz: needs the gzip program" "$dir/long.gz"

# ---- the command line ----
text good "a 1 4194304 0" "a 2 512 3" "f 1 0" "a 1 1000 7" "f 1 0"
says 2 "names no trace"
says 2 "unknown option" --wrong "$dir/good"
says 2 "value is missing" "$dir/good" --limit
says 2 "takes a number from 1 to 1024" --streams 0 "$dir/good"
says 2 "takes a number from 1 to 1024" --threads many "$dir/good"
says 2 "source takes" --source disk "$dir/good"
says 2 "does not go with it" --threads 2 --streams 2 "$dir/good"
says 2 "fixed order" --threads 2 --min-limit "$dir/good"
says 2 "draws one trace" --svg "$dir/x.svg" "$dir/good" "$dir/good"
says 2 "E_ARGUMENT" --limit 12GB! "$dir/good"

# ---- what comes out ----
says 0 '^good +5 ' "$dir/good"
says 0 '"events":5,"peak_live_bytes":4194816,' --json "$dir/good"
says 0 '"failures":0}$' --json "$dir/good"
for field in trace source events peak_live_bytes peak_reserved_bytes reserved_over_live \
    ns_per_op_cold ns_per_op_warm cuda_calls driver_us failures; do
    says 0 "[{,]\"$field\":" --json "$dir/good"
done
text one "a 1 8388608 0"
says 0 '"min_limit_over_live":1.0000' --json --min-limit "$dir/one"
says 1 'E_OUT_OF_MEMORY' --limit 2MiB "$dir/one"
says 1 '"failures":3}' --json --limit 2MiB "$dir/one"
says 0 '"failures":0}' --json --streams 3 "$dir/long"
says 0 '"failures":0}' --json --threads 2 "$dir/long.gz"
for source in auto mapped device managed pinned bypass; do
    says 0 "\"source\":\"$source\".*\"failures\":0}" --json --source $source "$dir/long.gz"
done
says 0 '"failures":0}' --json --svg "$dir/map.svg" "$dir/long"
if grep -q '<svg' "$dir/map.svg"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: no picture in --svg's file"
fi
text calls "# of all kinds" "a 1 4194304 0" "a 2 1000 7 65536" "u 2 0" \
    "o 99999999999999 7 512" "f 1 0" "l 100000000" "t 0" "f 2 7" "r 7"
says 0 '"events":9,"peak_live_bytes":4195304,.*"failures":0}' --json "$dir/calls"
says 0 '"failures":0}' --json --timeline "$dir/line.svg" --limit 64MiB "$dir/calls"
if grep -q 'reserved</title>' "$dir/line.svg"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: no picture in --timeline's file"
fi
if grep -q 'limit: 95.37 MiB, above this picture' "$dir/line.svg"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: the timeline does not say where the limit is"
fi
says 1 '/nowhere/line.svg: No such file' --timeline /nowhere/line.svg "$dir/calls"
says 1 '/dev/full: No space' --timeline /dev/full "$dir/calls"
says 2 "timeline draws one trace" --timeline "$dir/x.svg" "$dir/good" "$dir/good"
says 2 "timeline needs a fixed order" --timeline "$dir/x.svg" --threads 2 "$dir/good"
says 2 "takes a number from 1 to 100" --passes 101 "$dir/good"
says 2 "takes a number from 1 to 100" --min-limit --limit-passes 0 "$dir/good"
says 2 "limit-passes needs --min-limit" --limit-passes 2 "$dir/good"
says 0 '"cuda_calls_by_pass":\[[1-9][0-9]*\],' --json --passes 1 "$dir/good"
says 0 '"memory_calls_by_pass":\[[1-9][0-9]*,0,0,0,0\],' --json --passes 5 "$dir/good"
says 0 '^  pass 3 +[0-9.]+ ns +0 CUDA calls: +0 memory, +0 events, +0 other' --passes 3 "$dir/one"
says 0 '^  pass 1 +[0-9.]+ ns +[1-9][0-9]* CUDA calls: +[1-9][0-9]* memory' --passes 3 "$dir/one"
lines=$("$replay" --passes 7 "$dir/one" | grep -o '^  pass [0-9]*' | tr -d '\n')
if [[ $lines == "  pass 1  pass 3  pass 5  pass 7" ]]; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: the passes shown are '$lines'"
fi
for i in {1..64}; do printf 'a %d 8388608 %d\nf %d %d\n' $i $((i % 8 + 1)) $i $((i % 8 + 1)); done \
    > "$dir/hand"
says 0 '"min_limit_bytes":8388608,.*"failures":0}$' --json --behind --min-limit \
    --limit-passes 4 "$dir/hand"
events() { "$replay" --json "$@" "$dir/hand" | grep -o '"event_calls_by_pass":[^]]*'; }
if [[ $(events) != "$(events --behind)" ]]; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: --behind changes nothing: $(events)"
fi
says 0 '"trace":"[^"]*/good \+ [^"]*/long",.*"events":2005,.*"failures":0}$' --json --beside \
    "$dir/good" "$dir/long"
text a "a 1 4194304 0" "f 1 0" "a 2 512 3" && text b "a 1 2097152 0" "f 1 0" "a 1 1000 7" "f 1 0"
says 0 '"events":7,"peak_live_bytes":6291456,' --json --beside "$dir/a" "$dir/b"
says 0 '"reserved_bytes_by_pass":\[[1-9][0-9]*,[1-9][0-9]*\]' --json --passes 2 "$dir/good"
says 0 '"live_bytes_by_pass":\[4194816,4194816\]' --json --passes 2 "$dir/good"
says 2 "does not go with it" --beside --streams 2 "$dir/good" "$dir/long"
says 2 "^$dir/missing: No such file" --beside "$dir/good" "$dir/missing"
says 0 '"failures":0}$' --json --cudafree "$dir/long"
says 0 '"failures":0}$' --json --cudafree --beside "$dir/good" "$dir/long"
says 2 "default arena as it is" --cudafree --limit 1GiB "$dir/good"
text a "a 1 4194304 0" "f 1 0" "a 2 512 3" && text b "a 1 8388608 7" "f 1 0" "a 1 1000 7" "f 1 0"
says 0 '"trace":"[^"]*/a \+ [^"]*/b","source":"auto",.*"events":7,"peak_live_bytes":8388608,' \
    --json --in-turn "$dir/a" "$dir/b"
says 0 '"memory_calls_by_pass":\[[1-9][0-9]*,[1-9][0-9]*,0\],' \
    --json --in-turn "$dir/one" "$dir/hand" "$dir/one"
says 2 "^$dir/missing: No such file" --in-turn "$dir/a" "$dir/missing"
says 2 "makes a pass of each trace" --in-turn --passes 2 "$dir/a"
says 2 "sync goes with neither" --sync --min-limit "$dir/a"
says 0 '"failures":0}$' --json --sync --streams 3 "$dir/long"
says 0 '"failures":0}$' --json --sync --in-turn "$dir/a" "$dir/b"
says 0 "^usage: replay" --help
says 0 "^usage: replay" -h
cp "$dir/good" "$dir/"$'\xff<\xed\xa0\x80\xe2\x82\xac.trace'
says 0 '/\?<\?\?\?€.trace",' --json "$dir/"*.trace
says 0 '"failures":0' --json --timeline "$dir/name.svg" "$dir/"*.trace
if grep -q '>?&lt;???€.trace: at most' "$dir/name.svg"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: the timeline's name is not as it should be"
fi
for options in "" --json; do
    if "$replay" $options "$dir/one" 2> "$dir/told" > /dev/full ||
        ! grep -q 'No space left' "$dir/told"; then
        failed=$((failed + 1))
        echo "FAILED: a full disk is not told of by replay $options"
    else passed=$((passed + 1)); fi
done
text log $rmm "1,10:00:00.000001,allocate,0x7f0010,4096,0x0" "1,t,free,0x7f0010,4096,0x0" \
    "1,t,allocate failure,(nil),99999999,0x1" "1,t,allocate,0x7f0010,8192,0xab" \
    "1,t,allocate,0x7f8000,0,0" "1,t,free,0x7f8000,0,0"
says 0 '"events":3,"peak_live_bytes":8192,' --json "$dir/log"
sed 's/free/deallocate/' "$dir/log" > "$dir/words" # as RMM's manual has it
says 0 '"events":3,"peak_live_bytes":8192,' --json "$dir/words"
gzip -c "$dir/log" > "$dir/log.csv.gz"
says 0 '"events":3,"peak_live_bytes":8192,' --json "$dir/log.csv.gz"

# ---- RMM's streams: memory goes from one to another only behind a fence, which is CUDA calls ----
turns() { # THREAD STREAM THREAD STREAM: a block of all that the limit allows, one after the other
    text log $rmm "$1,t,allocate,0x10,2097152,$2" "$1,t,free,0x10,2097152,$2" \
        "$3,t,allocate,0x10,2097152,$4" "$3,t,free,0x10,2097152,$4"
}
free_of_calls='"cuda_calls_warm":0,.*"failures":0}$'
fenced='"cuda_calls_warm":[1-9].*"failures":0}$'
turns 1 0xab 1 0xab && says 0 "$free_of_calls" --json --limit 2MiB "$dir/log"
turns 1 0xab 1 0xac && says 0 "$fenced" --json --limit 2MiB "$dir/log"
turns 1 0 2 0x1 && says 0 "$free_of_calls" --json --limit 2MiB "$dir/log"
turns 1 0x2 1 0x2 && says 0 "$free_of_calls" --json --limit 2MiB "$dir/log"
turns 1 0x2 2 0x2 && says 0 "$fenced" --json --limit 2MiB "$dir/log"
sample='"events":182,"peak_live_bytes":93208167,'
says 0 "$sample.*$fenced" --json tests/traces/rmm.csv
says 0 "$sample.*\"failures\":0}$" --json --streams 1 tests/traces/rmm.csv

echo "$passed passed, $failed failed"
((failed == 0))
