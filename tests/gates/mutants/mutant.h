/* What a mutant of gpupool.h hides behind: MUTANT(n) is true in the run that MUTANT=n asks for. */
#ifndef MUTANT_H
#define MUTANT_H
extern int mutant_now;
extern unsigned char *mutant_reached; /* by number: whether a run has come there */
#define MUTANT(n) (mutant_reached[n] = 1, mutant_now == (n))
#endif
