#!/bin/sh
# Says what is begun, the how manyth step of how many it is, and after how many seconds:
# step.sh FILE STEPS BEGAN WHAT. FILE has a line for each step, BEGAN is in seconds since 1970.
echo >> "$1"
printf '%4d of %d, %3d s  %s\n' "$(wc -l < "$1")" "$2" $(($(date +%s) - $3)) "$4"
