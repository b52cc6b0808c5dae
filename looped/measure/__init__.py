"""What benchmarks, simulations and evaluations share.

statistics, backlog, capacity    percentiles; whether a load is kept up with; the largest rate
arrivals                         when requests come
flop_bound                       how much early exit could gain
divergence                       where two runs of a request part
cells, page, results_folder      tables, pages, and the folder they are kept in
machine, violation               what was measured on; broken rules
"""
