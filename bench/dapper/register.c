/* What libquantum's programs spend their time with: gates on a register whose qubits are all in
 * superposition.
 *
 *   register QUBITS
 */
#include <quantum.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **argument)
{
    if (count != 2)
        return 2;
    int qubits = atoi(argument[1]);
    quantum_reg reg = quantum_new_qureg(0, qubits);
    for (int i = 0; i < qubits; i++)
        quantum_hadamard(i, &reg);
    for (int round = 0; round < 4; round++)
        for (int i = 0; i + 2 < qubits; i++) {
            quantum_toffoli(i, i + 1, i + 2, &reg);
            quantum_cnot(i, i + 2, &reg);
            quantum_sigma_x(i, &reg);
        }
    printf("%d states\n", reg.size);
    quantum_delete_qureg(&reg);
    return 0;
}
