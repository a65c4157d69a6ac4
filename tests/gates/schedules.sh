#!/bin/bash
# Every order of two threads, with CUTS interruptions (2; many minutes with 3; 0: no orders, that is
# `make mistakes`); and then the header with mistakes that others have made, or that its locks
# invite, each of which a scene of a test must see: schedules.sh FOLDER COMPILE... LIBRARY. JOBS
# programs at a time; ONLY=NAME: one mistake alone.
set -u
folder=$(realpath -m "$1")
shift
compile=("${@:1:$#-1}") library=${*: -1}
cuts=${CUTS:-2} jobs=${JOBS:-2} only=${ONLY:-}
orders=(test_schedules test_schedules_ring test_schedules_mapped test_schedules_ends)

# What is broken is run for a moment only.
quick=("${compile[@]}" -O0 -g0 -w -DSCHEDULE_CUTS=2)
! command -v clang > /dev/null || quick[0]=clang

build() { # NAME TEST HEADER COMPILE...: leaves $folder/NAME
    local sources=("tests/unit/$2.c" -DGPUPOOL_STATIC=1)
    [[ -e ${sources[0]} ]] || sources=("tests/api/$2.c" tests/support/linked.c -DLINKED=1)
    mkdir -p "$folder/$1.header"
    cp "$3" "$folder/$1.header/gpupool.h"
    "${@:4}" -I"$folder/$1.header" -Itests -Itests/support -MF "$folder/$1.header/made_of" \
        -o "$folder/$1" "${sources[@]}" "$library" -lm
}

whole() { # TEST: it must pass with the header as it is
    local said="FAILS with the header as it is"
    build "$1" "$1" gpupool.h "${compile[@]}" "-DSCHEDULE_CUTS=$cuts" &&
        "$folder/$1" > "$folder/$1.out" 2>&1 && said="passes"
    grep -v '^[0-9]* passed' "$folder/$1.out"
    printf '%-48s %s\n' "$1" "$said"
    [[ $said == passes ]]
}

# A scene takes a second or two: one that is not done by then hangs, as only those in $hang may.
run() { # NAME SCENE: its status
    (CHECK_ONLY=$2 timeout 30 "$folder/$1" > "$folder/$1.out" 2>&1) 2> /dev/null
}

verdict() { # NAME TEST FUNCTION EDIT SCENE
    local header=$folder/$1.h status
    sed "/^[A-Za-z].*\<$3(/,/^}/{$4}" gpupool.h > "$header"
    if cmp -s gpupool.h "$header"; then echo "THE EDIT FITS NO LINE"; return; fi
    if ! build "$1" "$2" "$header" "${quick[@]}" 2> "$folder/$1.errors"
    then echo "DOES NOT COMPILE"; return; fi
    run "$1" "$5"
    status=$?
    if ((status == 0)); then echo "IS NOT SEEN"
    elif ((status == 124)) && [[ " $hang " == *" $1 "* ]]; then echo "is seen: it hangs"
    elif ((status == 124)); then echo "HANGS, WHICH IT SHOULD NOT"
    else
        echo "is seen: $(grep -m 1 'GOES WRONG\|goes on\|^FAILED' "$folder/$1.out" ||
                         echo it aborts)"
    fi
}

started=()
begin() { # NAME FUNCTION ARGUMENTS: in the background; NAME.good tells its end
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
    rm -f "$folder/$1.good"
    started+=("$1")
    ("${@:2}" && touch "$folder/$1.good") &
}

judge() { # NAME TEST FUNCTION EDIT SCENE
    local said
    said=$(verdict "$@")
    printf '%-48s %s\n' "$1" "$said"
    [[ $said == "is seen: "* ]]
}

# An edit is for sed, on one function.
broken() { # NAME TEST FUNCTION EDIT SCENE
    [[ -z $only || $only == "$1" ]] && begin "$1" judge "$@"
}

mkdir -p "$folder"
if [[ -z $only && $cuts != 0 ]]; then
    for test in "${orders[@]}"; do begin "$test" whole "$test"; done
fi
source tests/gates/mistakes.sh
wait
passed=0 failed=0
for name in "${started[@]}"; do
    if [[ -e $folder/$name.good ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
