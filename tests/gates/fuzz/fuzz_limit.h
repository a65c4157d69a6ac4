/* fuzz_limit.h: limits as text. Whatever is said, it is either refused with the limit as it was, or
   taken, and then it is between 1 byte and the device's memory times what was said. */
#ifndef FUZZ_LIMIT_H
#define FUZZ_LIMIT_H

#include "fuzz.h"

/* The same by other means: 1 and the bytes, or 0 where the text is not the header's grammar. */
static int fuzz_limit_expected(const char *text, double total, double free, double *bytes) {
    static const struct { const char *unit; double bytes; } units[] = {
        {"", 1}, {"b", 1}, {"k", 0x1p10}, {"m", 0x1p20}, {"g", 0x1p30}, {"t", 0x1p40},
        {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40},
        {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"%", -1}, {"%free", -2}};
    char unit[8] = "", number[400];
    int all_but = *text == '-', whole;
    const char *at = text + all_but;
    size_t length = strspn(at, "0123456789"), i;
    if (length == 0) return 0;
    if (at[length] == '.') length += 1 + strspn(at + length + 1, "0123456789");
    if (length >= sizeof number) return 0;
    memcpy(number, at, length);
    number[length] = 0;
    whole = strchr(number, '.') == NULL;
    at += length;
    if (*at == ' ' && at[1]) at++;
    if (strlen(at) >= sizeof unit) return 0;
    for (i = 0; at[i]; i++) unit[i] = (char)(at[i] >= 'A' && at[i] <= 'Z' ? at[i] + 32 : at[i]);
    for (i = 0; i < KIT_COUNT(units) && strcmp(unit, units[i].unit); i++) continue;
    if (i == KIT_COUNT(units) || (!whole && units[i].bytes == 1)) return 0;
    *bytes = strtod(number, NULL);
    if (units[i].bytes < 0 && *bytes > 100) return 0;
    *bytes *= units[i].bytes == -1 ? total / 100 : units[i].bytes == -2 ? free / 100
                                                                        : units[i].bytes;
    if (all_but) *bytes = total - *bytes;
    return *bytes >= 1 && *bytes < 9e18;
}

static void fuzz_limit_text(gpupool_arena *arena, const char *text, double total, double others) {
    size_t before = kit_limit(arena), after;
    double expected = 0, least, most;
    int taken = fuzz_limit_expected(text, total, total - others, &expected);
    gpupool_result result = gpupool_set_limit_text(arena, text);
    after = kit_limit(arena);
    if (result != GPUPOOL_OK) {
        CHECK_RESULT(result, GPUPOOL_E_ARGUMENT);
        CHECK_EQ(after, before);
        CHECK(strlen(gpupool_last_error()) > 20);
        /* what is within a hair of nothing may go either way */
        if (taken && expected > 2 && expected < 8.9e18)
            check_fail(__FILE__, __LINE__, "\"%s\" is refused: %s", text, gpupool_last_error());
        return;
    }
    least = expected - 2 - expected * 1e-9;
    most = expected + 2 + expected * 1e-9;
    if (!taken || (double)after < least || (double)after > most)
        check_fail(__FILE__, __LINE__, "\"%s\" is %zu bytes, not %.0f", text, after, expected);
}

/* Two bytes about the device, then texts, one a line. */
static int fuzz_limit(const uint8_t *data, size_t size) {
    char text[400];
    size_t n = 0, total, others;
    gpupool_arena *arena;
    if (size < 2) return 1;
    fuzz_prepare();
    total = ((size_t)data[0] + 1) * 64 * MIB;
    others = total / 256 * data[1];
    fake_device_memory(0, total);
    fake_other_process(0, others);
    arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    for (size_t i = 2; i <= size && !atomic_load(&check_bad); i++) {
        if (i < size && data[i] && data[i] != '\n' && n < sizeof text - 1) {
            text[n++] = (char)data[i];
            continue;
        }
        text[n] = 0;
        fuzz_limit_text(arena, text, (double)total, (double)others);
        n = 0;
    }
    kit_close(arena);
    return fuzz_settle();
}

#endif
