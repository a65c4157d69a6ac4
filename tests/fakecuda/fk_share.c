/* Handles that go to other processes, as file descriptors.
 *
 * A descriptor is a small file that says where the bytes are: in this process, or in another one's
 * memory file, which is opened by way of /proc, so that two processes really share. Seen on an H100
 * (CUDA 13.0): each export gives a new descriptor, which is not close-on-exec; a handle that was
 * made without the type is INVALID_VALUE; what was imported is a handle of its own, to be released;
 * the memory stays until all processes have let go; what is no such descriptor is INVALID_VALUE. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fk.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FK_SHARED 0x66616b656375ull

typedef struct fk_letter {
    uint64_t magic, handle, at, bytes;
    int      process, file, device, types;
} fk_letter;

static int fk_export(int *descriptor, uint64_t handle, int type) {
    fk_piece *piece = fk_find_handle(handle);
    fk_letter letter;
    int file;
    if (!piece || !descriptor || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(piece->types & type))
        return CUDA_ERROR_INVALID_VALUE;
    memset(&letter, 0, sizeof letter);
    letter.magic = FK_SHARED;
    letter.handle = handle;
    letter.at = piece->file_at;
    letter.bytes = piece->bytes;
    letter.process = (int)getpid();
    letter.file = fk_memory_file();
    letter.device = piece->device;
    letter.types = piece->types;
    file = memfd_create("fakecuda handle", 0);
    if (file < 0) return CUDA_ERROR_UNKNOWN;
    if (write(file, &letter, sizeof letter) != (ssize_t)sizeof letter) {
        close(file);
        return CUDA_ERROR_UNKNOWN;
    }
    piece->is_shared = 1;
    *descriptor = file;
    return 0;
}

static fk_piece *fk_piece_of_another(const fk_letter *letter) {
    fk_piece *piece;
    char path[64];
    int file;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", letter->process, letter->file);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    piece = fk_import_piece(file, letter->at, letter->bytes, letter->device);
    piece->is_shared = 1;
    piece->types = letter->types;
    return piece;
}

static int fk_import(CUmemGenericAllocationHandle *handle, int descriptor, int type) {
    fk_piece *piece = NULL;
    fk_letter letter;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread(descriptor, &letter, sizeof letter, 0) != (ssize_t)sizeof letter ||
        letter.magic != FK_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fk_is_device(letter.device)) return CUDA_ERROR_INVALID_DEVICE;
    if (letter.process == (int)getpid()) piece = fk_find_handle(letter.handle);
    if (!piece) piece = fk_piece_of_another(&letter);
    if (!piece) return CUDA_ERROR_INVALID_VALUE; /* the real one would still have it */
    *handle = fk_hold_handle(piece);
    return 0;
}

FK_DEFINE(CUresult, cuMemExportToShareableHandle,
          (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
           unsigned long long flags),
          flags ? CUDA_ERROR_INVALID_VALUE : fk_export(shareable, handle, (int)type))
FK_DEFINE(CUresult, cuMemImportFromShareableHandle,
          (CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type),
          fk_import(handle, (int)(intptr_t)shareable, (int)type))
