/* A block in two processes: what one writes the other reads, a hundred times over; and the exporter
   is killed while the importer holds its memory. Both processes count what they leave open. */
// build: plain
// build: asan -fsanitize=address,undefined
#define _GNU_SOURCE
#include "gpupool.h"
#include "share_kit.h"
#include "share_socket.h"

#define ROUNDS 100

static size_t bytes_of(int round) { return (size_t)(round % 5 + 1) * 2 * MIB; }

/* ---- the child that imports: reads what it is sent, writes the next byte ---- */

static int importer_socket, exporter_socket;
static pid_t importer, exporter;

static int import_all(int socket) {
    gpupool_exported exported;
    int open_before = 0, round;
    kit_prepare();
    for (round = 0; share_receive(socket, &exported); round++) {
        gpupool_imported imported;
        if (round == 1) open_before = share_descriptors(); /* with what CUDA opens by itself */
        CHECK_RESULT(gpupool_import(0, &exported, &imported), GPUPOOL_OK);
        CHECK_EQ(close(exported.descriptor), 0);
        if (!imported.memory) break;
        CHECK_EQ(imported.bytes, bytes_of(round));
        kit_expect_mark(kit_stream[0], imported.memory, imported.bytes, round);
        kit_mark(kit_stream[0], imported.memory, imported.bytes, round + 1);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        share_unimport(&imported);
        CHECK(share_say(socket, 'd'));
    }
    CHECK_EQ(round, ROUNDS);
    if (CHECK_FAKE) CHECK_EQ(share_descriptors(), open_before - 1); /* then one was underway */
    close(socket);
    kit_settle();
    return atomic_load(&check_bad) != 0;
}

static void a_hundred_rounds(void) {
    share_open(0, 64 * MIB);
    for (int round = 0; round < ROUNDS; round++) {
        check_case("round %d", round);
        char *block = share_get(bytes_of(round));
        kit_mark(kit_stream[0], block, bytes_of(round), round);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        gpupool_exported exported = share_exported(block);
        CHECK(share_send(importer_socket, &exported));
        if (!CHECK_EQ(share_hear(importer_socket), 'd')) break;
        kit_expect_mark(kit_stream[0], block, bytes_of(round), round + 1);
        share_unexport(block);
        share_put(block);
    }
    close(importer_socket);
    share_before--; /* which was open before the test */
    CHECK_EQ(share_end_of(importer), 0);
    kit_close(arena);
}

/* ---- the child that exports, and does not live to close it ---- */

static int export_and_wait(int socket) {
    gpupool_exported exported;
    close(importer_socket); /* or the importer would not see that the parent has closed it */
    kit_prepare();
    share_open(0, 0);
    for (int i = 0; i < 2; i++) {
        char *block = share_get(bytes_of(i));
        kit_mark(kit_stream[0], block, bytes_of(i), 40 + i);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        exported = share_exported(block);
        CHECK(share_send(socket, &exported));
    }
    if (atomic_load(&check_bad)) return 1;
    share_hear(socket); /* never */
    return 2;
}

/* What was imported before stays, whoever dies. What comes later, from a descriptor that has
   arrived already, is had as well, or refused in words. */
static void the_exporter_is_killed(void) {
    gpupool_exported first, second;
    gpupool_imported imported, late;
    CHECK(share_receive(exporter_socket, &first));
    CHECK(share_receive(exporter_socket, &second));
    imported = share_imported(0, &first);
    kit_expect_mark(kit_stream[0], imported.memory, bytes_of(0), 40);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    CHECK_EQ(kill(exporter, SIGKILL), 0);
    CHECK_EQ(share_end_of(exporter), 1000 + SIGKILL);
    kit_expect_mark(kit_stream[0], imported.memory, bytes_of(0), 40);
    kit_mark(kit_stream[0], imported.memory, bytes_of(0), 50);
    kit_expect_mark(kit_stream[0], imported.memory, bytes_of(0), 50);
    gpupool_result result = gpupool_import(0, &second, &late);
    if (result == GPUPOOL_OK) {
        kit_expect_mark(kit_stream[0], late.memory, bytes_of(1), 41);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        share_unimport(&late);
    } else {
        CHECK_RESULT(result, GPUPOOL_E_CUDA);
        CHECK(strstr(gpupool_last_error(), "cuMemImportFromShareableHandle") != NULL);
        CHECK(late.memory == NULL);
    }
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    share_unimport(&imported);
    close(first.descriptor);
    close(second.descriptor);
    CHECK_EQ(share_hear(exporter_socket), 0);
    close(exporter_socket);
    share_before--;
}

int main(void) {
    importer = share_fork(&importer_socket, import_all);
    exporter = share_fork(&exporter_socket, export_and_wait);
    if (importer < 0 || exporter < 0) {
        check_skip("all", "no process could be made");
        return check_finish();
    }
    SHARE_TEST(a_hundred_rounds);
    SHARE_TEST(the_exporter_is_killed);
    return check_finish();
}
