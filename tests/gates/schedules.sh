#!/bin/bash
# Every order of two threads, with CUTS interruptions (2; many minutes with 3); and then the header
# with mistakes that others have made, or that its locks invite, each of which a test must see:
# schedules.sh FOLDER COMPILE... LIBRARY. JOBS programs at a time; ONLY=NAME: one mistake alone.
set -u
folder=$(realpath -m "$1")
shift
compile=("${@:1:$#-1}") library=${*: -1}
cuts=${CUTS:-2} jobs=${JOBS:-2} only=${ONLY:-}
# these are all about orders; the others have scenes of their own for what they must see
orders=(test_schedules test_schedules_ring test_schedules_mapped)
others=(test_races test_stitch test_stitch_undone test_stitch_bounds test_stitch_graphs
        test_ring_async test_tag_callbacks test_hooks test_sleep_spares)

build() { # NAME TEST HEADER FLAGS: leaves $folder/NAME
    local sources=("tests/unit/$2.c")
    [[ -e ${sources[0]} ]] || sources=("tests/api/$2.c" tests/support/linked.c -DLINKED=1)
    mkdir -p "$folder/$1.header"
    cp "$3" "$folder/$1.header/gpupool.h"
    "${compile[@]}" -I"$folder/$1.header" -Itests -Itests/support "${@:4}" \
        -MF "$folder/$1.header/made_of" -o "$folder/$1" "${sources[@]}" "$library" -lm
}

run() { # NAME CPU_SECONDS SECONDS: its status
    (ulimit -t "$2" && timeout "$3" "$folder/$1" > "$folder/$1.out" 2>&1) 2> /dev/null
}

# After how many seconds a test hangs, by what it took with the header as it is: the machine may be
# slow, and then all that is run is slow.
seconds_of() { # TEST
    local took=60
    [[ -e $folder/$1.took ]] && took=$(< "$folder/$1.took")
    echo $((20 + 20 * took))
}

whole() { # TEST FLAGS: it must pass with the header as it is
    local said="FAILS with the header as it is" begun=$SECONDS
    build "$1" "$1" gpupool.h "${@:2}" && run "$1" unlimited 0 && said="passes"
    echo $((SECONDS - begun)) > "$folder/$1.took"
    grep -v '^[0-9]* passed' "$folder/$1.out"
    printf '%-48s %s\n' "$1" "$said"
    [[ $said == passes ]]
}

verdict() { # NAME TEST FUNCTION EDIT
    local header=$folder/$1.h status
    sed "/^[A-Za-z].*\<$3(/,/^}/{$4}" gpupool.h > "$header"
    if cmp -s gpupool.h "$header"; then echo "THE EDIT FITS NO LINE"; return; fi
    if ! build "$1" "$2" "$header" -O0 -g0 -w -DSCHEDULE_CUTS=2 2> "$folder/$1.errors"
    then echo "DOES NOT COMPILE"; return; fi
    run "$1" 200 "$(seconds_of "$2")"
    status=$?
    if ((status == 0)); then echo "IS NOT SEEN"
    elif ((status == 124 || status == 137 || status == 152)); then echo "is seen: it hangs"
    else
        echo "is seen: $(grep -m 1 'GOES WRONG\|goes on\|^FAILED' "$folder/$1.out" ||
                         echo it aborts)"
    fi
}

started=()
begin() { # NAME FUNCTION ARGUMENTS: in the background; NAME.good tells its end
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
    rm -f "$folder/$1.good" "$folder/$1.took"
    started+=("$1")
    ("${@:2}" && touch "$folder/$1.good") &
}

judge() { # NAME TEST FUNCTION EDIT
    local said
    said=$(verdict "$@")
    printf '%-48s %s\n' "$1" "$said"
    [[ $said == "is seen: "* ]]
}

# An edit is for sed, on one function.
broken() { # NAME TEST FUNCTION EDIT
    [[ -z $only || $only == "$1" ]] && begin "$1" judge "$@"
}

mkdir -p "$folder"
if [[ -z $only ]]; then
    for test in "${orders[@]}"; do begin "$test" whole "$test" "-DSCHEDULE_CUTS=$cuts"; done
    for test in "${others[@]}"; do begin "$test" whole "$test" -O0 -w; done
fi
source tests/gates/mistakes.sh
wait
passed=0 failed=0
for name in "${started[@]}"; do
    if [[ -e $folder/$name.good ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
((failed == 0))
