"""The parts of the report page: markup, quantities, charts, and one module per group of sections."""
